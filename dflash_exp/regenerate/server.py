"""Rows rewritten by an OpenAI-compatible server: chat completions, many at a time.

In: rows. Out: each once it is done, or failed after all its retries. One thread, `concurrency` conversations at a time;
a stop or an error drops the requests that are under way, which such servers then give up as well. Where the server has
failed as many rows in succession as are asked for at a time (16 at least), it is taken for lost: `Lost`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, TypeVar

import httpx2

from dflash_exp.data.regeneration import Regeneration
from dflash_exp.regenerate.answer import Passing, Refused, RefusesAll, body_of, model_of, reply_of, utc_now, wait_s
from dflash_exp.regenerate.endpoint import Endpoint
from dflash_exp.regenerate.rewriting import Failed, Reply, Rewriting, Row, drawn_seed

TICK_S = 0.2
"""How often a stop is looked for while nothing is answered."""
LOST_AFTER = 16
"""Rows that the server failed in succession, at least."""

T = TypeVar("T")


class Lost(Exception):
    """The server no longer answers."""


class Server:
    """An endpoint, asked as the settings say."""

    def __init__(self, settings: Regeneration, api_key: str | None) -> None:
        assert settings.server is not None, "only then there is one"
        self._settings, self._endpoint = settings, Endpoint(settings.server, api_key, settings.timeout_s)
        self._rng = Random(settings.seed)
        self.model = settings.model or asyncio.run(self._only_model())
        """What it is called; raises ValueError, one line, where the server does not say so."""

    def rewrite(
        self, rows: Iterable[Row], take: Callable[[Rewriting | Failed], None], stop: Callable[[], bool]
    ) -> None:
        """As `Rewriter` has it; raises Lost, and ValueError, one line, where the server refuses everything."""
        try:
            asyncio.run(self._rewrite((row for row in rows if not row.is_kept), take, stop))
        except RefusesAll as error:
            raise self._refused(str(error)) from None

    async def _rewrite(
        self, rows: Iterable[Row], take: Callable[[Rewriting | Failed], None], stop: Callable[[], bool]
    ) -> None:
        under_way: set[asyncio.Task[Rewriting | Failed]] = set()
        lost = _LostCount(max(LOST_AFTER, self._settings.concurrency))
        async with self._endpoint.client(self._settings.concurrency) as client:
            try:
                for row in rows:
                    under_way.add(asyncio.create_task(self._rewritten(client, row)))
                    while len(under_way) >= self._settings.concurrency and not stop():
                        under_way = await _taken(under_way, take, lost)
                    if stop():
                        return
                while under_way and not stop():
                    under_way = await _taken(under_way, take, lost)
            finally:
                for task in under_way:
                    task.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)

    async def _rewritten(self, client: httpx2.AsyncClient, row: Row) -> Rewriting | Failed:
        rewriting = Rewriting(row, self._settings.last_turn_only)
        try:
            while not rewriting.is_done:
                rewriting.take(await self._reply(client, rewriting))
        except (Refused, Passing) as error:
            why, passes = self._endpoint.without_key(str(error)), isinstance(error, Passing)
            attempts = f", the last of {self._settings.retries + 1} attempts" if passes else ""
            return Failed(row, why + attempts, of_server=passes)
        return rewriting

    async def _reply(self, client: httpx2.AsyncClient, rewriting: Rewriting) -> Reply:
        asked = {
            "model": self.model,
            "messages": rewriting.asked(),
            "temperature": self._settings.temperature,
            "max_tokens": self._settings.max_tokens,
            "seed": drawn_seed(self._settings.seed, rewriting.row.number, rewriting.n_done),
        }

        async def once() -> Reply:
            return reply_of(await self._answer(client, "POST", "chat/completions", asked))

        return await self._tried(once)

    async def _tried(self, once: Callable[[], Awaitable[T]]) -> T:
        """Once more after each passing failure; raises the last one."""
        for attempt in range(self._settings.retries):
            try:
                return await once()
            except Passing as error:
                await asyncio.sleep(wait_s(attempt, self._settings.first_wait_s, error.retry_after_s, self._rng))
        return await once()

    async def _answer(self, client: httpx2.AsyncClient, method: str, path: str, asked: object) -> dict[str, Any]:
        answer = await self._endpoint.answer(client, method, path, asked)
        return body_of(answer.status_code, answer.headers, answer.content, utc_now())

    async def _only_model(self) -> str:
        async def once() -> str:
            return model_of(await self._answer(client, "GET", "models", None))

        async with self._endpoint.client(1) as client:
            try:
                return await self._tried(once)
            except (Passing, Refused) as error:
                raise self._refused(f"GET models: {error}") from error
            except RefusesAll as error:
                raise self._refused(f"GET models: {error}", "name the model: regenerate.model=NAME") from error

    def _refused(self, why: str, mend: str = "see to the address, the key and regenerate.model") -> ValueError:
        said, address = self._endpoint.without_key(why), self._endpoint.address
        return ValueError(f"regenerate.server must answer as OpenAI's does, {address} does not: {said}; {mend}")


class _LostCount:
    """Counts rows that the server failed in succession."""

    def __init__(self, most: int) -> None:
        self._most, self._n = most, 0

    def see(self, outcome: Rewriting | Failed) -> None:
        """Raises Lost with the row that is one too many."""
        if not isinstance(outcome, Failed):
            self._n = 0
        elif outcome.of_server:
            self._n += 1
            if self._n >= self._most:
                raise Lost(f"{self._n} rows failed in succession, the last with {outcome.why}")


async def _taken(
    under_way: set[asyncio.Task[Rewriting | Failed]], take: Callable[[Rewriting | Failed], None], lost: _LostCount
) -> set[asyncio.Task[Rewriting | Failed]]:
    """What is still under way once some are done, or a moment has passed."""
    done, pending = await asyncio.wait(under_way, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        outcome = task.result()
        take(outcome)
        lost.see(outcome)
    return pending
