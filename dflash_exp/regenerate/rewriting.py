"""One conversation on its way: what is asked next, and what has been answered.

In: a `Row` and one `Reply` after another. Out: what is asked for each assistant turn, in order, each seeing those that
were rewritten before it; in the end the record that is written. No clock, no network, no model.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_exp.data.conversation import Conversation, Turn


@dataclass(frozen=True)
class Row:
    """A conversation of the input."""

    number: int
    """Over all sources, rows that are no conversations too, from 0."""
    where: str
    """File and line."""
    conversation: Conversation
    is_kept: bool
    """It was rewritten before the command was stopped."""


@dataclass(frozen=True)
class Reply:
    """One assistant turn, as the target has it."""

    content: str
    reasoning: str | None
    """Where a server tells it apart from the content."""
    finish_reason: str
    """stop, length, or the server's own word."""
    n_tokens: int | None
    """Generated; None where a server does not say."""


@dataclass(frozen=True)
class Failed:
    """A row that could not be rewritten."""

    row: Row
    why: str
    of_server: bool = False
    """It is not the row's own fault: the server did not answer."""


class Rewriting:
    """A row, partly rewritten."""

    def __init__(self, row: Row, last_turn_only: bool) -> None:
        self.row = row
        self._turns = list(row.conversation.turns)
        answers = [i for i, turn in enumerate(self._turns) if turn.role == "assistant"]
        self._due = answers[-1:] if last_turn_only else answers
        self._replies: list[Reply] = []

    @property
    def n_done(self) -> int:
        """Turns that are rewritten."""
        return len(self._replies)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to ask."""
        return self.n_done == len(self._due)

    def asked(self) -> list[dict[str, str]]:
        """The messages before the next turn to be rewritten."""
        return [turn.message() for turn in self._turns[: self._due[self.n_done]]]

    def take(self, reply: Reply) -> None:
        """Put the answer in the turn's place."""
        self._turns[self._due[self.n_done]] = Turn("assistant", reply.content, reply.reasoning)
        self._replies.append(reply)

    def record(self) -> dict[str, Any]:
        """What is written of it once it is done; `tokens` is None where a reply's number is not known."""
        counts = [reply.n_tokens for reply in self._replies]
        return {
            "messages": [turn.message() for turn in self._turns],
            "source": self.row.where,
            "row": self.row.number,
            "tokens": None if None in counts else sum(count for count in counts if count is not None),
            "finish_reasons": [reply.finish_reason for reply in self._replies],
        }


class Rewriter(Protocol):
    """A way to the target: a server, or the model in this process."""

    def rewrite(
        self, rows: Iterable[Row], take: Callable[[Rewriting | Failed], None], stop: Callable[[], bool]
    ) -> None:
        """Hand on each row that is not kept yet, once it is done or has failed, in any order; after `stop` none is."""
        ...


def drawn_seed(seed: int, row: int, turn: int) -> int:
    """For one turn of one row: 31 bits, the same on every platform, so that equal prompts are not answered alike."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{row}/{turn}".encode(), digest_size=4).digest(), "little") >> 1
