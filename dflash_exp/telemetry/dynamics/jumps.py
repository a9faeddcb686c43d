"""Steps whose loss stands out, and what an immediate probe says of them: composition, forgetting, both, unresolved.

In: each step's loss, detrended with and without the forecast (`composition.py`), and every probe. Out: events.

A jump begins where one of the two series is more than 4 robust standard deviations (1.4826 MAD) above the median of
its last 200 values for 3 steps running. It lasts until neither is; one that begins within 10 steps continues it. At its
third step the probe runs, and
  rise         is the probe loss less that of the last probe 5 steps or more before the jump (a later one may show what
               the jump shows), in probe SDs: the robust standard deviation of the up to 20 changes from probe to probe
               until then; no rise needs no SD, any is without bound where the SD is 0
  explained    is the share of the three steps' excess that the forecast takes away: 1 - mean(e) / mean(y)
forgetting     rise > 3: the drafter is worse on what it is not trained on
both           rise > 3, and half of the excess or more is explained
composition    rise <= 1: the drafter is as good as before, so it is the steps that differ; or rise <= 3 and explained
unresolved     anything else, or fewer than 3 changes of the probe to compare with
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dflash_exp.telemetry.dynamics.composition import Parts

JUMP_SDS, JUMP_STEPS = 4.0, 3
HISTORY, LEAST_HISTORY = 200, 50
PROBE_SDS, QUIET_SDS = 3.0, 1.0
PROBE_CHANGES, LEAST_CHANGES = 20, 3
EXPLAINED = 0.5
MARGIN_STEPS, JOINED_STEPS = 5, 10
SD_PER_MAD = 1.4826


@dataclass(frozen=True)
class Jump:
    """One event."""

    step: int
    """Its first."""
    n_steps: int
    """How long it lasted, or has so far."""
    kind: str
    bucket: int
    """The one that the most of its first three steps' weight was in."""
    explained: float
    """Share of the excess that the forecast takes away."""
    probe_before: float | None
    probe_after: float | None
    rise_sds: float | None
    """None where the probe's SD is not known or 0."""


class JumpWatch:
    """Of one run, step by step."""

    def __init__(self) -> None:
        self.jumps: list[Jump] = []
        self.largest_rise = 0.0
        """Of the probe loss, from one probe to the next, as a share of it."""
        self.risen: list[int] = []
        """Steps at which a probe that was due had risen by more than 3 SDs, with or without a jump."""
        self._raw: list[float] = []
        self._residual: list[float] = []
        self._streaks = [0, 0]
        self._recent: list[tuple[float, float, int]] = []
        """y, e and bucket of the last three steps."""
        self._probes: list[float] = []
        self._probe_steps: list[int] = []

    def add(self, step: int, parts: Parts, bucket: int) -> bool:
        """Take a step in; whether a jump is to be judged now. `bucket`: the one that most of its weight is in."""
        for i, (history, value) in enumerate(((self._raw, parts.raw), (self._residual, parts.residual))):
            self._streaks[i] = self._streaks[i] + 1 if stands_out(value, history) else 0
        self._recent = [*self._recent, (parts.raw, parts.residual, bucket)][-JUMP_STEPS:]
        self._raw = [*self._raw, parts.raw][-HISTORY:]
        self._residual = [*self._residual, parts.residual][-HISTORY:]
        longest, last = max(self._streaks), self.jumps[-1] if self.jumps else None
        if longest < JUMP_STEPS:
            return False
        if last is not None and step - JUMP_STEPS + 1 < last.step + last.n_steps + JOINED_STEPS:
            self.jumps[-1] = replace(last, n_steps=step - last.step + 1)
            return False
        return True

    def judge(self, step: int, probe_loss: float | None) -> Jump:
        """The event whose third step this is. `probe_loss`: measured now; None where there is no probe."""
        raw, residual = (float(np.mean([one[i] for one in self._recent])) for i in (0, 1))
        explained = 1 - residual / raw if raw > 0 else 0.0
        n_before = sum(probed <= step - JUMP_STEPS + 1 - MARGIN_STEPS for probed in self._probe_steps)
        before = self._probes[n_before - 1] if n_before else None
        rise_sds = rise_of(probe_loss, self._probes[:n_before])
        known = None if rise_sds is None or np.isinf(rise_sds) else rise_sds
        buckets = [bucket for _, _, bucket in self._recent]
        jump = Jump(
            step - JUMP_STEPS + 1, JUMP_STEPS, kind_of(rise_sds, explained), max(buckets, key=buckets.count),
            explained, before, probe_loss, known,
        )  # fmt: skip
        self.jumps.append(jump)
        if probe_loss is not None and before is not None:
            self.largest_rise = max(self.largest_rise, probe_loss / before - 1)
        return jump

    def probed(self, step: int, probe_loss: float) -> None:
        """A probe that was due: what later ones are compared with."""
        if (rise_of(probe_loss, self._probes) or 0.0) > PROBE_SDS:
            self.risen.append(step)
        if self._probes:
            self.largest_rise = max(self.largest_rise, probe_loss / self._probes[-1] - 1)
        self._probes = [*self._probes, probe_loss][-PROBE_CHANGES - 1 :]
        self._probe_steps = [*self._probe_steps, step][-PROBE_CHANGES - 1 :]

    def state(self) -> dict[str, Any]:
        """As JSON holds it."""
        return vars(self) | {"jumps": [asdict(jump) for jump in self.jumps], "_recent": [list(r) for r in self._recent]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        vars(self).update({name: list(v) if isinstance(v, list) else v for name, v in state.items()})
        self.jumps = [Jump(**jump) for jump in state["jumps"]]
        self._recent = [(y, e, bucket) for y, e, bucket in state["_recent"]]


def stands_out(value: float, history: Sequence[float]) -> bool:
    """Whether a value is far above those before it; never where they are few, or all but the same."""
    if len(history) < LEAST_HISTORY:
        return False
    middle, sd = middle_and_sd(history)
    return sd > 0 and value - middle > JUMP_SDS * sd


def middle_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Median, and the robust standard deviation about it."""
    middle = float(np.median(values))
    return middle, SD_PER_MAD * float(np.median(np.abs(np.array(values) - middle)))


def rise_of(probe_loss: float | None, probes: Sequence[float]) -> float | None:
    """How far a probe is above the last of `probes`, in SDs of their changes, 0 where it is not above; None where it
    is, and too few changes are known."""
    if probe_loss is None or not probes:
        return None
    changes, rise = np.diff(probes), probe_loss - probes[-1]
    if rise <= 0:
        return 0.0
    if len(changes) < LEAST_CHANGES:
        return None
    _, sd = middle_and_sd(changes.tolist())
    return rise / sd if sd > 0 else float("inf")


def kind_of(rise_sds: float | None, explained: float) -> str:
    """The verdict, as the head of this file has it."""
    if rise_sds is None:
        return "unresolved"
    if rise_sds > PROBE_SDS:
        return "both" if explained >= EXPLAINED else "forgetting"
    return "composition" if rise_sds <= QUIET_SDS or explained >= EXPLAINED else "unresolved"


def in_words(jumps: Sequence[Jump], largest_rise: float, risen: Sequence[int], n_probes: int) -> str:
    """One line: how many jumps of which kind, and what the probe did."""
    rose = f"the probe never rose by more than {100 * largest_rise:.1f} %" if n_probes > 1 else "there was no probe"
    verdict = verdict_of(jumps, risen) if n_probes > 1 else "forgetting cannot be told"
    if not jumps:
        return f"no jump; {rose}: {verdict}"
    kinds = [jump.kind for jump in jumps]
    counted = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    split = f"all {kinds[0]}" if len(counted) == 1 and len(jumps) > 1 else ", ".join(counted)
    buckets = sorted({jump.bucket for jump in jumps if jump.kind == "composition"})
    runs = f" (runs of bucket {', '.join(map(str, buckets))})" if buckets else ""
    count = f"{len(jumps)} jump{'s' if len(jumps) > 1 else ''}"
    return f"{count}, {split}{runs}; {rose}: {verdict}"


def verdict_of(jumps: Sequence[Jump], risen: Sequence[int]) -> str:
    """Whether the drafter became worse on what it is not trained on, and when."""
    forgot = [jump.step for jump in jumps if jump.kind in ("forgetting", "both")]
    if forgot:
        return f"forgetting at step {', '.join(map(str, forgot))}"
    if risen:
        return f"no forgetting in a jump, but the probe had risen by over 3 SDs at step {', '.join(map(str, risen))}"
    return "no forgetting"
