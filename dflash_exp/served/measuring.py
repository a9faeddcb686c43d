"""Prompts, asked of a server one after the other -> what it answered, and what it accepted.

In: an address and prompts as ids. Out: a `Completion` each, behind one short answer that is not counted, which pays
what only a first one pays. One prompt at a time, as our own decoding has them: the rates of a loaded server are another
figure.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_exp.regenerate.answer import Passing, Refused, RefusesAll, model_of
from dflash_exp.regenerate.endpoint import Endpoint
from dflash_exp.served.engines import ENGINES, Asking, Completion, Engine, Line

WARM_UP_TOKENS = 8
TIMEOUT_S = 3600.0
"""Of one answer."""


@dataclass(frozen=True)
class Served:
    """What a server answered."""

    engine: str
    model: str
    completions: list[Completion]


def served(
    address: str,
    api_key: str | None,
    prompts: Sequence[Sequence[int]],
    asking: Asking,
    progress: Callable[[int], None],
) -> Served:
    """Ask the server's only model for every prompt, one at least; `address` is with or without its /v1.

    Raises ValueError, one line.
    """
    endpoint = Endpoint(address.rstrip("/").removesuffix("/v1"), api_key, TIMEOUT_S)
    try:
        return asyncio.run(_served(endpoint, prompts, asking, progress))
    except (Passing, Refused, RefusesAll, ValueError) as error:
        said = endpoint.without_key(str(error))
        raise ValueError(
            f"--server must be vLLM or SGLang with a draft model, {endpoint.address} is not or does not answer: {said}"
            "; see to the address, the key and the server's log"
        ) from error


async def _served(
    endpoint: Endpoint, prompts: Sequence[Sequence[int]], asking: Asking, progress: Callable[[int], None]
) -> Served:
    async with endpoint.client(1) as client:
        line = Line(client, endpoint)
        name, model = _who(await line.models())
        engine: Engine = ENGINES[name](line, model)
        await engine.complete(replace(asking, max_new_tokens=min(WARM_UP_TOKENS, asking.max_new_tokens)), prompts[0])
        completions = []
        for n_done, prompt in enumerate(prompts, start=1):
            completions.append(await engine.complete(asking, prompt))
            progress(n_done)
    return Served(name, model, completions)


def _who(listed: dict[str, Any]) -> tuple[str, str]:
    """The kind of server, and its only model."""
    model, owner = model_of(listed), listed["data"][0].get("owned_by")
    if owner not in ENGINES:
        raise ValueError(f"its model is owned by {owner!r}, not by {' or '.join(ENGINES)}")
    return owner, model
