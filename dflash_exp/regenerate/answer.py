"""What a server answered: a reply, or what to do about it.

In: status, headers and body of an OpenAI-compatible answer. Out: a `Reply`; `Passing` where another attempt may do
better, `Refused` where the row is at fault, `RefusesAll` where the whole command is (key, address, model). How long to
wait is said here, too.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any

from dflash_exp.regenerate.rewriting import Reply

OK = 200
PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 that are tried again."""
OF_THE_COMMAND = frozenset({401, 403, 404, 405})
"""Key, address or model: no row would be answered."""
LONGEST_WAIT_S = 60.0
LONGEST_RETRY_AFTER_S = 600.0
SHOWN = 200
"""Characters of what a server says."""


class Passing(Exception):
    """No answer this time."""

    def __init__(self, why: str, retry_after_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """The server will not answer this, however often it is asked."""


class RefusesAll(Exception):
    """The server will answer no row at all."""


def body_of(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> dict[str, Any]:
    """The JSON object of an answer; raises Passing, Refused, RefusesAll. `headers` go by lower-case names."""
    said = f"status {status}: {_shown(body)}"
    if status in OF_THE_COMMAND:
        raise RefusesAll(said)
    if status in PASSING or status >= 500:
        raise Passing(said, retry_after_s(headers.get("retry-after"), now))
    if status != OK:
        raise Refused(said)
    try:
        held = json.loads(body)
    except ValueError:
        held = None
    if not isinstance(held, dict):
        raise Passing(f"an answer that is no JSON object: {_shown(body)}")
    return held


def reply_of(held: Mapping[str, Any]) -> Reply:
    """The reply in a chat completion; raises Passing where there is none."""
    try:
        choice = held["choices"][0]
        message = choice["message"]
        content = message["content"] or ""
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        f"{content}{reasoning}".encode()
        if not isinstance(content, str) or not isinstance(reasoning, str | None):
            raise TypeError
        return Reply(content, reasoning, str(choice.get("finish_reason") or "unknown"), _n_tokens(held))
    except (LookupError, TypeError, AttributeError, UnicodeEncodeError):
        raise Passing(f"an answer without choices[0].message.content: {_shown(json.dumps(held).encode())}") from None


def model_of(held: Mapping[str, Any]) -> str:
    """The only model in a list of them; raises RefusesAll."""
    try:
        named = [str(model["id"]) for model in held["data"]]
    except (LookupError, TypeError):
        named = []
    if len(named) != 1:
        raise RefusesAll(f"it serves {', '.join(named[:5]) or 'none that it names'}")
    return named[0]


def retry_after_s(header: str | None, now: datetime) -> float:
    """Of a header Retry-After, in seconds or a date, at most ten minutes; 0 where there is none that can be read."""
    if header is None:
        return 0.0
    try:
        wanted = float(header) if header.strip().isdigit() else (parsedate_to_datetime(header) - now).total_seconds()
    except (ValueError, TypeError):  # TypeError: a date without a zone
        return 0.0
    return min(max(wanted, 0.0), LONGEST_RETRY_AFTER_S)


def wait_s(attempt: int, first_wait_s: float, retry_after_s: float, rng: Random) -> float:
    """Before the attempt after this one, counted from 0: doubled each time, by up to a half less so that not all come
    back at once, and never less than the server asked for."""
    return max(retry_after_s, min(first_wait_s * 2**attempt, LONGEST_WAIT_S) * rng.uniform(0.5, 1.0))


def utc_now() -> datetime:
    """What a date in Retry-After is held against."""
    return datetime.now(UTC)


def _n_tokens(held: Mapping[str, Any]) -> int | None:
    usage = held.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def _shown(body: bytes) -> str:
    """Its beginning, in one line."""
    line = " ".join(body.decode(errors="replace").split())
    return (line if len(line) <= SHOWN else f"{line[:SHOWN]}...") or "nothing"
