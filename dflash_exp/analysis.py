"""What a sweep will be judged by: the block `analysis` of a sweep's file, frozen before its first job runs.

It belongs to the sweep and not to a run: `compose.py` takes it off before the rest becomes a run's configuration.
"""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from dflash_exp.suggest import did_you_mean

METRICS = (
    "probe/loss", "probe/tau_teacher_forced", "probe/tau_replayed", "tau_pooled", "tau_macro", "speedup", "train/loss",
    "throughput/tokens_per_s",
)  # fmt: skip
"""What a sweep can be judged by: fields of a record and of evaluation.json. The last counts; of train/loss the mean
over the last tenth of the steps, of throughput all tokens over all time."""


class DiffersIn(str, Enum):
    """What the arms of a sweep are allowed to differ in."""

    ORDER = "order"
    """In the order of the batches alone, which is checked before the first job runs."""
    SETTING = "setting"


@dataclass(frozen=True)
class Analysis:
    """One metric, one contrast, one margin."""

    primary_metric: str
    baseline: str | None
    """The arm that all others are held against, as its override: `interleave=shuffle`; None: arms are described."""
    contrast: str | None
    """The arm whose difference from the baseline is the sweep's question."""
    margin: float
    """The share of the baseline within which two arms count as equal."""
    seeds: int
    """Runs of each arm that the verdict waits for; what is seen before is an interim look."""
    differs_in: DiffersIn

    def __post_init__(self) -> None:
        if self.primary_metric not in METRICS:
            mend = did_you_mean(self.primary_metric, METRICS) or f"; the metrics are {', '.join(METRICS)}"
            raise ValueError(f"analysis.primary_metric must be a metric of runs, got {self.primary_metric}{mend}")
        for name, arm in {"baseline": self.baseline, "contrast": self.contrast}.items():
            if arm is not None and "=" not in arm:
                raise ValueError(f"analysis.{name} must be an override, got {arm}; say 'interleave={arm}'")
        if (self.baseline is None) != (self.contrast is None) or (self.baseline and self.baseline == self.contrast):
            got = f"{self.baseline} and {self.contrast}"
            raise ValueError(
                f"analysis.baseline and analysis.contrast must be two arms or both null, got {got}; name two"
            )
        if not 0 < self.margin < 1:
            raise ValueError(f"analysis.margin must be in (0, 1), got {self.margin}; 0.01 is 1 % of the baseline")
        if self.seeds < 1:
            raise ValueError(f"analysis.seeds must be >= 1, got {self.seeds}; a verdict needs 3")

    def as_json(self) -> dict[str, Any]:
        """As sweep.json holds it."""
        return asdict(self) | {"differs_in": self.differs_in.value}
