"""What servers say of their drafting -> counts of verify steps.

In: vLLM's /metrics, which counts since its start and for everybody, or what SGLang adds to one answer. Out: `Counts`. A
step that reaches the end of a text counts with all that it accepted, also beyond that end, which the text does not
have: on short texts the shares of the slots read a little higher than those of our own decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_exp.served.prometheus import samples

STEPS = "vllm:spec_decode_num_drafts_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
GENERATED = "vllm:generation_tokens_total"


@dataclass(frozen=True)
class Counts:
    """Of some verify steps."""

    steps: int
    accepted_at: tuple[int, ...]
    """Steps whose slot k was accepted, k = 1 .. B - 1."""

    def __sub__(self, before: Counts) -> Counts:
        """Raises ValueError where those before cannot be of the same server."""
        same_slots = len(self.accepted_at) == len(before.accepted_at)
        less = [now - then for now, then in zip(self.accepted_at, before.accepted_at, strict=False)]
        if not same_slots or min(self.steps - before.steps, *less, 0) < 0:
            raise ValueError(
                "its counters fell or have other slots than a moment ago: it was started anew; run evaluate again"
            )
        return Counts(self.steps - before.steps, tuple(less))


@dataclass(frozen=True)
class VllmTotals:
    """Since a server's start, over all of its engines and requests."""

    counts: Counts
    generated: int
    """Tokens."""


def of_vllm(text: str) -> VllmTotals:
    """Raises ValueError where the counters are missing: the server does not speculate, or is none of vLLM's."""
    found = list(samples(text))
    if not any(sample.name == STEPS for sample in found):
        raise ValueError(
            f"its /metrics has no {STEPS}; start it with --speculative-config, without --disable-log-stats"
        )
    n_slots = 1 + max((int(sample.labels["position"]) for sample in found if sample.name == ACCEPTED_AT), default=-1)
    accepted_at = [0] * n_slots
    for sample in found:
        if sample.name == ACCEPTED_AT:
            accepted_at[int(sample.labels["position"])] += int(sample.value)
    steps, generated = (
        sum(int(sample.value) for sample in found if sample.name == name) for name in (STEPS, GENERATED)
    )
    return VllmTotals(Counts(steps, tuple(accepted_at)), generated)


def of_sglang(answer: Mapping[str, Any]) -> Counts:
    """Of one answer that was asked for `return_spec_tokens_details`: how many steps accepted 0, 1, ... drafted tokens.

    Raises ValueError where it says nothing: it does not speculate, or is too old to tell.
    """
    try:
        histogram = [int(n) for n in answer["sglext"]["spec_tokens_details"]["spec_correct_drafts_histogram"]]
    except (LookupError, TypeError, ValueError):
        raise ValueError("its answers have no sglext.spec_tokens_details; start it with a draft model") from None
    return Counts(sum(histogram), tuple(sum(histogram[k:]) for k in range(1, len(histogram))))


def total(several: Sequence[Counts]) -> Counts:
    """Added up; a slot that some do not have was never accepted there."""
    n_slots = max((len(one.accepted_at) for one in several), default=0)
    padded = [one.accepted_at + (0,) * (n_slots - len(one.accepted_at)) for one in several]
    return Counts(sum(one.steps for one in several), tuple(sum(column) for column in zip(*padded, strict=True)))
