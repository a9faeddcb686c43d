"""All that is said of a run's dynamics: after each step, at each probe, in the end.

In: what each step did, the same on every rank. Out: fields of its record, and `dynamics` of result.json. Nothing here
is trained on: a run with another eye on it is the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dflash_exp.messages import LossSums, StepResult
from dflash_exp.telemetry.dynamics.composition import Forecast
from dflash_exp.telemetry.dynamics.jumps import JumpWatch, in_words
from dflash_exp.telemetry.dynamics.whiplash import MIXED, Whiplash, conflict
from dflash_exp.telemetry.metrics import Metrics


class Dynamics:
    """Of one run."""

    def __init__(self, n_buckets: int, seed: int) -> None:
        self._forecast = Forecast(n_buckets, seed)
        self._watch = JumpWatch()
        self._whiplash = Whiplash(n_buckets, seed)
        self._n_steps_K = [0] * n_buckets
        """Steps that were of one bucket alone, by bucket; and of them those that were clipped."""
        self._n_clipped_K = [0] * n_buckets
        self._n_probes = 0
        self.conflict: dict[str, Any] | None = None
        """Of the probe's gradients, once they were taken."""
        self.to_judge = False
        """Whether a jump is three steps old just now: `judge` it before the next step."""

    def after_step(self, step: int, result: StepResult) -> Metrics:
        """Fields of the step's record."""
        metrics = self._gradient_metrics(result)
        parts = self._forecast.add(step, result.by_bucket)
        self.to_judge = parts is not None and self._watch.add(step, parts, heaviest(result.by_bucket))
        if parts is not None:
            metrics["dynamics/residual"] = parts.residual
        shares = self._forecast.shares()
        if shares is not None:
            metrics["dynamics/composition_share"], metrics["dynamics/composition_share_permuted"] = shares
        return metrics

    def judge(self, step: int, probe_loss: float | None) -> Metrics:
        """The jump of which this is the third step, by a probe made just now; None where there is none."""
        self.to_judge = False
        jump = self._watch.judge(step, probe_loss)
        return {"dynamics/jump": jump.kind, "dynamics/jump_probe_loss": probe_loss}

    def probed(self, step: int, probe_loss: float) -> None:
        """A probe that was due, after the step's jump was judged."""
        self._n_probes += 1
        self._watch.probed(step, probe_loss)

    def compare_gradients(self, sketches: Mapping[int, Sequence[float]]) -> None:
        """Of each bucket's part of the probe, all at the same parameters."""
        self.conflict = conflict(sketches)

    def as_json(self) -> dict[str, Any]:
        """`dynamics` of result.json."""
        share, permuted = self._forecast.shares() or (None, None)
        jumps, rise = self._watch.jumps, self._watch.largest_rise
        return {
            "composition_share": share, "composition_share_permuted": permuted,
            "jumps": [asdict(jump) for jump in jumps], "largest_probe_rise": rise,
            "probe_risen_at": list(self._watch.risen),
            "in_words": in_words(jumps, rise, self._watch.risen, self._n_probes),
            "whiplash": self._whiplash.figures(), "conflict": self.conflict,
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Nested dictionaries and lists of numbers and text."""
        kept = {name: part.state() for name, part in self._parts().items()}
        counts = {"n_steps": list(self._n_steps_K), "n_clipped": list(self._n_clipped_K)}
        return kept | counts | {"n_probes": self._n_probes, "conflict": self.conflict}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        for name, part in self._parts().items():
            part.load_state(state[name])
        self._n_steps_K, self._n_clipped_K = list(state["n_steps"]), list(state["n_clipped"])
        self._n_probes, self.conflict = state["n_probes"], state["conflict"]

    def _parts(self) -> dict[str, Forecast | JumpWatch | Whiplash]:
        return {"forecast": self._forecast, "watch": self._watch, "whiplash": self._whiplash}

    def _gradient_metrics(self, result: StepResult) -> Metrics:
        """Of the step's gradient; by bucket where all of its batches are of one."""
        buckets = set(result.buckets)
        bucket = buckets.pop() if len(buckets) == 1 else MIXED
        self._whiplash.add(bucket, result.grad_cosine)
        metrics: Metrics = {} if result.grad_cosine is None else {"train/grad_cosine": result.grad_cosine}
        if bucket != MIXED and not result.skipped:
            self._n_steps_K[bucket] += 1
            self._n_clipped_K[bucket] += result.clipped
            share = self._n_clipped_K[bucket] / self._n_steps_K[bucket]
            metrics |= {f"bucket/{bucket}/grad_norm": result.grad_norm, f"bucket/{bucket}/clipped_share": share}
            metrics |= {f"bucket/{bucket}/update_norm": result.update_norm}
        return metrics


def heaviest(by_bucket: Mapping[int, LossSums]) -> int:
    """The bucket that most of a step's weight is in."""
    return max(by_bucket, key=lambda bucket: by_bucket[bucket].weight)
