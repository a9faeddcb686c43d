"""Mirrors of metrics.jsonl: what a sink is, the options of W&B and trackio, what they are told of the run.

Nothing of this imports a client: the configuration names these classes, and most runs of it never open a mirror.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from dflash_exp.messages import StepRecord

TAG_CHARACTERS = 64
"""W&B refuses a longer tag, and the whole run with it."""

BESIDE = ("plan_figures", "git", "devices", "packages", "command", "overrides", "analysis")
"""Keys that a mirrored run's configuration has beside the run's own."""


class Sink(Protocol):
    """Where records go."""

    def write(self, record: StepRecord) -> None:
        """Take one optimizer step's record."""
        ...

    def close(self, status: str) -> None:
        """No record comes after this; status is finished, failed or stopped, as in result.json."""
        ...


@dataclass(frozen=True)
class RunLabels:
    """What a mirror is told of the run beside its records."""

    identity: str
    """The run's id in W&B: a resumed run goes on where it was."""
    name: str
    """Slug and seed, for people."""
    group: str | None
    """The sweep's name."""
    job_type: str
    """train, evaluate or compare."""
    tags: list[str]
    """Strategy, buckets, target, experiment; cut to what W&B takes."""
    config: Mapping[str, Any]
    """The resolved configuration as plain values, with whatever else runs are to be grouped and filtered by."""


class WandbMode(str, Enum):
    """Whether W&B is told at once."""

    auto = "auto"
    """Online where a key is found, else offline; the client's own WANDB_MODE goes before both."""
    online = "online"
    offline = "offline"
    """Files in the run directory, for `wandb sync`."""
    off = "off"


class WandbArtifacts(str, Enum):
    """Which files W&B is given beside the records."""

    none = "none"
    final = "final"
    """The drafter, at the run's end."""
    all = "all"
    """The drafter, and the plan's files."""


@dataclass(frozen=True)
class Wandb:
    """The mirror in W&B."""

    mode: WandbMode
    entity: str | None
    """None: the account's default."""
    project: str
    group: str | None
    """None: the sweep's name."""
    job_type: str | None
    """None: what the verb does."""
    tags: list[str]
    """Beside the run's own."""
    notes: str | None
    artifacts: WandbArtifacts
    alerts: bool
    """Whether W&B may write to people when a run fails."""

    def __post_init__(self) -> None:
        if not self.project or set(self.project) & set("/\\#?%:"):
            raise ValueError(
                f"telemetry.wandb.project must be a name without any of /\\#?%:, got {self.project!r}; "
                "an entity goes into telemetry.wandb.entity"
            )
        for tag in self.tags:
            if not 1 <= len(tag) <= TAG_CHARACTERS:
                raise ValueError(
                    f"telemetry.wandb.tags must each have 1 to {TAG_CHARACTERS} characters, got {tag!r}; "
                    "telemetry.wandb.notes takes any text"
                )


@dataclass(frozen=True)
class Telemetry:
    """The mirrors of metrics.jsonl, which is written whatever they do."""

    wandb: Wandb
    trackio: bool
    """A second mirror, on this machine's disk, in the project of the first."""


def plotted(record: StepRecord) -> dict[str, float]:
    """What a chart can show of a record: numbers, flags as 0 and 1, and of a list its only element.

    So `batch/buckets` is a line where a step is one batch. Longer lists, words, and what has no value, stay in
    metrics.jsonl.
    """
    shown = {"time_s": record.time_s}
    for name, value in record.metrics.items():
        values = value if isinstance(value, list) else [value]
        if len(values) == 1 and not isinstance(values[0], str | None):
            shown[name] = values[0] + 0  # a flag is a whole number
    return shown
