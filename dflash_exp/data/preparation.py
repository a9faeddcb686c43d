"""What `dflash-exp prepare` was asked for: sources, limits, shares.

Plain values, checked once; nothing heavy is imported, since every verb's configuration is composed with these keys.
"""

from dataclasses import dataclass
from enum import Enum


class Thinking(str, Enum):
    """What is done about the reasoning in `<think>` marks or under `reasoning_content`."""

    KEEP = "keep"
    """It is left to the template as it is."""
    STRIP = "strip"
    """It is taken out of every assistant turn."""
    REQUIRE = "require"
    """A conversation whose last assistant turn has none is left out, and counted."""


@dataclass(frozen=True)
class Preparation:
    """Raw conversations and the store they become."""

    source: list[str] | None
    """Files, globs, folders, folders of `datasets.save_to_disk`, or `hf:owner/name`, `hf:owner/name:split`."""
    out: str | None
    """The store's folder."""
    workers: int | None
    """Processes; None: as many as cores that this one may use."""
    min_tokens: int
    """Shorter conversations are left out and counted, as are longer ones than `max_tokens`."""
    max_tokens: int | None
    """None: no limit here; `data.max_tokens` is a run's own."""
    thinking: Thinking
    last_turn_only: bool
    """Only the last assistant turn is supervised."""
    probe_share: float
    """Of the conversations, drawn by a hash of each."""
    prompts_share: float

    def __post_init__(self) -> None:
        self._check_limits()
        shares = (self.probe_share, self.prompts_share)
        if min(shares) < 0 or sum(shares) >= 1:
            raise ValueError(
                f"prepare.probe_share and prepare.prompts_share must be >= 0 and leave some to train on, got "
                f"{shares[0]} and {shares[1]}; 0.01 each is usual"
            )

    def _check_limits(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"prepare.workers must be >= 1 or null, got {self.workers}; null takes every core")
        if self.min_tokens < 2:
            raise ValueError(f"prepare.min_tokens must be >= 2, got {self.min_tokens}; 2 leaves out the least")
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(
                f"prepare.max_tokens must be at least prepare.min_tokens or null, got {self.max_tokens} and "
                f"{self.min_tokens}; null sets no limit"
            )
