"""The servers that say what they accept, each with its own way of saying so.

In: a prompt's ids. Out: a `Completion`: tokens, seconds, and the verify steps behind it. vLLM has counters of all that
it serves, which are read before and after each prompt; tokens that are not of our answer are other people's, and
counted as such. SGLang tells the steps of each answer by itself, so that nobody else is in them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from dflash_exp.regenerate.answer import OK, body_of, utc_now
from dflash_exp.regenerate.endpoint import Endpoint
from dflash_exp.served.counts import Counts, VllmTotals, of_sglang, of_vllm

SETTLE_S, TICK_S = 10.0, 0.02
"""vLLM counts an answer a moment after it is given: how long that is waited for, and how often it is looked at."""


@dataclass(frozen=True)
class Asking:
    """What is asked of every prompt."""

    max_new_tokens: int
    temperature: float
    """0: greedy."""
    seed: int

    def body(self, model: str, prompt: Sequence[int]) -> dict[str, Any]:
        """Of a completion; the prompt goes as ids, so that no server's template or tokenizer changes it."""
        return {
            "model": model, "prompt": list(prompt), "max_tokens": self.max_new_tokens,
            "temperature": self.temperature, "seed": self.seed,
        }  # fmt: skip


@dataclass(frozen=True)
class Completion:
    """One prompt's continuation."""

    text: str
    tokens: tuple[int, ...] | None
    """None where the server tells the text alone."""
    n_tokens: int
    counts: Counts
    others_tokens: int
    """Of other requests, generated meanwhile; 0 where they cannot be in the counts."""
    seconds: float
    """From the request to the whole answer."""


class Line:
    """One connection to a server."""

    def __init__(self, client: httpx2.AsyncClient, endpoint: Endpoint) -> None:
        self._client, self._endpoint = client, endpoint

    async def completed(self, asked: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """A whole completion, and the seconds from its request to its end."""
        begun_s = time.perf_counter()
        held = await self._object("POST", "v1/completions", asked)
        return held, time.perf_counter() - begun_s

    async def models(self) -> dict[str, Any]:
        """The list of models."""
        return await self._object("GET", "v1/models", None)

    async def text(self, path: str) -> str:
        """What lies there; raises ValueError where nothing does."""
        answer = await self._endpoint.answer(self._client, "GET", path)
        if answer.status_code != OK:
            raise ValueError(f"GET {path}: status {answer.status_code}")
        return answer.text

    async def _object(self, method: str, path: str, asked: object) -> dict[str, Any]:
        answer = await self._endpoint.answer(self._client, method, path, asked)
        return body_of(answer.status_code, answer.headers, answer.content, utc_now())


class Engine(Protocol):
    """A kind of server."""

    async def complete(self, asking: Asking, prompt: Sequence[int]) -> Completion:
        """Raises Passing, Refused, RefusesAll, and ValueError where it does not say what it accepts."""
        ...


class Vllm:
    """Counters at /metrics."""

    def __init__(self, line: Line, model: str) -> None:
        self._line, self._model = line, model

    async def complete(self, asking: Asking, prompt: Sequence[int]) -> Completion:
        before = await self._totals()
        asked = asking.body(self._model, prompt) | {"return_token_ids": True}
        held, seconds = await self._line.completed(asked)
        text, tokens, n_tokens = _read(held)
        now = await self._settled(before.generated + n_tokens)
        others = now.generated - before.generated - n_tokens
        return Completion(text, tokens, n_tokens, now.counts - before.counts, others, seconds)

    async def _settled(self, generated: int) -> VllmTotals:
        """The counters, once they hold so many tokens."""
        until_s = time.monotonic() + SETTLE_S
        while (now := await self._totals()).generated < generated:
            if time.monotonic() > until_s:
                raise ValueError(f"its /metrics counts {now.generated} tokens where it has answered with {generated}")
            await asyncio.sleep(TICK_S)
        return now

    async def _totals(self) -> VllmTotals:
        return of_vllm(await self._line.text("metrics"))


class Sglang:
    """Details in every answer that is asked for them."""

    def __init__(self, line: Line, model: str) -> None:
        self._line, self._model = line, model

    async def complete(self, asking: Asking, prompt: Sequence[int]) -> Completion:
        asked = asking.body(self._model, prompt) | {"return_spec_tokens_details": True}
        held, seconds = await self._line.completed(asked)
        text, tokens, n_tokens = _read(held)
        return Completion(text, tokens, n_tokens, of_sglang(held), 0, seconds)


ENGINES = {"vllm": Vllm, "sglang": Sglang}
"""By what they call the owner of the model in their list of models."""


def _read(held: dict[str, Any]) -> tuple[str, tuple[int, ...] | None, int]:
    """Text, tokens where they are told, and how many there are. Raises ValueError where they are missing."""
    try:
        choice = held["choices"][0]
        tokens = choice.get("token_ids")
        return str(choice["text"]), None if tokens is None else tuple(tokens), int(held["usage"]["completion_tokens"])
    except (LookupError, TypeError, AttributeError):
        raise ValueError("its answers have no choices[0].text with usage.completion_tokens") from None
