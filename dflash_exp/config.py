"""The typed configuration: one frozen dataclass for a whole experiment, checked once, and a run's identity.

Every field is a plain value, a section of this file or a group; a group's class is the dataclass that its option in
`conf/` names. OmegaConf stops at `door.py`: what passes it is one of these.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_exp.messages import NonFinite
from dflash_exp.plan.interleave import option_name
from dflash_exp.plan.seeds import Seeds

if TYPE_CHECKING:  # these import torch, which a mistyped key should not wait for
    from dflash_exp.checkpoint import Checkpoint
    from dflash_exp.data.store import EmbeddedData, StoreData
    from dflash_exp.distributed import Topology
    from dflash_exp.drafter.loss import LossConfig
    from dflash_exp.drafter.model import DrafterConfig
    from dflash_exp.optim import AdamW, Muon
    from dflash_exp.pipeline.line import Lockstep, Overlapped
    from dflash_exp.plan.align import Align
    from dflash_exp.plan.batches import Batching
    from dflash_exp.plan.buckets import Buckets
    from dflash_exp.plan.interleave import Interleave
    from dflash_exp.target import TargetConfig
    from dflash_exp.telemetry.mirror import Telemetry

GROUPS = (
    "data", "buckets", "batches", "interleave", "align", "target", "drafter", "loss", "optim", "topology", "pipeline",
    "checkpoint", "telemetry",
)  # fmt: skip
"""The fields of `Config` whose class the chosen option names by `_target_`."""

OUTSIDE_IDENTITY = ("run_dir", "topology", "telemetry", "checkpoint", "evaluate", "force", "profile", "partial")
"""What may differ between two commands that mean the same run; what `PLAN_SHOWS` names, too."""

PLAN_SHOWS = ("out", "tokens_per_s", "speed_from", "loss_from")
"""Keys of `plan` that say where a plan is shown and with what beside it."""

SAME_FEATURES = ("cache", "cache_bytes", "cache_dir", "layer_split")
"""Keys of `target` that say where its features are made, and whether anew: they are the same either way."""

YOUNGER = {
    "optim.lr_scale": "none",
    "optim.lr_reference_weight": None,
    "target.mask_token_id": None,
    "drafter.init_from": None,
    "target.forward": "batch",
}
"""Keys that came after runs, each with the value that means what those did: at that value it leaves a run the same."""


def _require(holds: bool, key: str, rule: str, value: object, mend: str) -> None:
    if not holds:
        raise ValueError(f"{key} must be {rule}, got {value}; {mend}")


@dataclass(frozen=True)
class Probe:
    """The held-out measurement during training."""

    every_steps: int
    """0: never."""
    sequences: int
    prompts: int
    """Held-out prompts of `probe/tau_replayed`; 0: none."""

    def __post_init__(self) -> None:
        _require(self.every_steps >= 0, "probe.every_steps", ">= 0", self.every_steps, "0 is never")
        _require(self.prompts >= 0, "probe.prompts", ">= 0", self.prompts, "0 replays none")
        _require(self.sequences >= 1, "probe.sequences", ">= 1", self.sequences, "probe.every_steps=0 is never")


@dataclass(frozen=True)
class Prompts:
    """What is decoded at the end."""

    limit: int | None
    """Held-out prompts; None: all of them."""
    max_new_tokens: int

    def __post_init__(self) -> None:
        limit = self.limit
        _require(limit is None or limit >= 1, "prompts.limit", ">= 1", limit, "null is all, evaluate=false is none")
        _require(self.max_new_tokens >= 1, "prompts.max_new_tokens", ">= 1", self.max_new_tokens, "128 is usual")


@dataclass(frozen=True)
class Guard:
    """What the run does about what should not be."""

    non_finite: NonFinite
    """Of a step whose gradient is NaN or infinite."""


@dataclass(frozen=True)
class Profile:
    """A trace of some steps."""

    steps: list[int] | None
    """The first and the last, from 1; None: no trace."""

    def __post_init__(self) -> None:
        steps = self.steps
        holds = steps is None or (len(steps) == 2 and 1 <= steps[0] <= steps[1])
        _require(holds, "profile.steps", "the first and the last step, from 1", steps, "say profile.steps=[10,12]")


@dataclass(frozen=True)
class PlanOutput:
    """What `dflash-exp plan` plans, and where it leaves it."""

    counts: list[int] | None
    """Batches per bucket, planned without any data; None: planned from the data."""
    out: str
    tokens_per_s: float | None = None  # as is speed_from, so that a run begun before there was one can be read
    """A speed, padding not counted, from which the hours follow."""
    speed_from: str | None = None
    """A run's directory, from whose records costs in seconds and hours follow; at most one of the two is given."""
    loss_from: str | None = None
    """A run's directory: the loss curve of its newest checkpoint under this order; None: no curve."""

    def __post_init__(self) -> None:
        counts, speed = self.counts, self.tokens_per_s
        holds = counts is None or (len(counts) > 0 and min(counts) >= 0 and sum(counts) > 0)
        _require(holds, "plan.counts", "numbers of batches, >= 0 and not all 0", counts, "null plans from the data")
        positive = speed is None or (speed > 0 and math.isfinite(speed))
        _require(positive, "plan.tokens_per_s", "> 0", speed, "plan.speed_from=RUN takes it from a run")
        given = {"plan.tokens_per_s": speed, "plan.speed_from": self.speed_from}
        got = " ".join(f"{key}={value}" for key, value in given.items() if value is not None)
        alone = speed is None or self.speed_from is None
        _require(alone, "plan.tokens_per_s or plan.speed_from", "given, not both", got, "leave one of them out")
        of_data = got == "" or counts is None
        _require(
            of_data, "plan.counts", "null with a speed, which is of tokens", f"{counts} and {got}", "leave one out"
        )
        learnt, run = self.loss_from is None or counts is None, self.loss_from
        _require(learnt, "plan.loss_from", "null with plan.counts, which has no data", run, "leave one of them out")


class Partial(str, Enum):
    """What a sweep over order does about runs that end within an epoch."""

    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True)
class Config:
    """One experiment. Every value stands in YAML."""

    name: str
    seed: int
    """What `seeds` follow unless they are set alone."""
    seeds: Seeds
    epochs: int | None
    """Exactly one of epochs, steps and tokens is set: the length of the run."""
    steps: int | None
    tokens: int | None
    batches_per_step: int
    """Over all ranks."""
    run_dir: str | None
    """None: `run_directory` says where."""
    evaluate: bool
    """Decode at the end."""
    force: bool
    """Train anew although the run is finished."""
    deterministic: bool
    probe: Probe
    prompts: Prompts
    guard: Guard
    profile: Profile
    plan: PlanOutput
    extensions: list[str]
    """Modules whose classes a group may name by `_target_`."""
    data: "EmbeddedData | StoreData"
    buckets: "Buckets"
    batches: "Batching"
    interleave: "Interleave"
    align: "Align"
    target: "TargetConfig"
    drafter: "DrafterConfig"
    loss: "LossConfig"
    optim: "AdamW | Muon"
    topology: "Topology"
    pipeline: "Lockstep | Overlapped"
    checkpoint: "Checkpoint"
    telemetry: "Telemetry"
    partial: Partial = Partial.REFUSE  # the default is for runs begun before there was one
    """Whether arms that differ in order may have trained on different batches in the end."""

    def __post_init__(self) -> None:
        _require(self.name.strip() != "", "name", "some text", repr(self.name), "it begins the run's identity")
        _require(self.seed >= 0, "seed", ">= 0", self.seed, "give any whole number from 0")
        _require(self.batches_per_step >= 1, "batches_per_step", ">= 1", self.batches_per_step, "1 is one batch a step")
        self.topology.check_split(self.target.layer_split)
        self._check_length()

    def _check_length(self) -> None:
        given = {"epochs": self.epochs, "steps": self.steps, "tokens": self.tokens}
        lengths = {name: length for name, length in given.items() if length is not None}
        for name, length in lengths.items():
            _require(length >= 1, name, ">= 1", length, "it is the length of the run")
        if len(lengths) != 1:
            got = " ".join(f"{name}={length}" for name, length in lengths.items()) or "none"
            others = " ".join(f"{name}=null" for name in list(lengths)[1:])
            mend = f"say {others} to keep {next(iter(lengths))}" if lengths else "say steps=100, for example"
            raise ValueError(f"exactly one of epochs, steps and tokens must be set, got {got}; {mend}")


def plain(config: Config) -> dict[str, Any]:
    """The configuration as JSON and YAML can hold it, `_target_`s too: `door.checked` gives the same `Config` back."""
    values: dict[str, Any] = _jsonable(asdict(config))
    for group in GROUPS:
        chosen = type(vars(config)[group])
        values[group] = {"_target_": f"{chosen.__module__}.{chosen.__qualname__}", **values[group]}
    return values


def _jsonable(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    return [_jsonable(item) for item in value] if isinstance(value, list | tuple) else value


def defaults(config: Config) -> dict[str, object]:
    """What those keys stood for, by dotted key, that are newer than some runs: the classes give them a default."""
    sections = {"": config, **{f"{name}.": part for name, part in vars(config).items() if is_dataclass(part)}}
    return {
        f"{prefix}{key.name}": _jsonable(key.default)
        for prefix, section in sections.items()
        for key in fields(section)
        if key.default is not MISSING
    }


def leaves(values: object, prefix: str = "") -> dict[str, object]:
    """What a plain configuration holds, by dotted key."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= leaves(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def within_identity(key: str) -> bool:
    """Whether a dotted key says what a run computes. Of `pipeline` only the threads do: they decide the last bit."""
    group = key.partition(".")[0]
    outside = group in OUTSIDE_IDENTITY or (group == "pipeline" and not key.startswith("pipeline.threads"))
    shown = [f"plan.{name}" for name in PLAN_SHOWS]
    return not outside and key not in [*shown, *(f"target.{name}" for name in SAME_FEATURES)]


def identity(config: Config) -> str:
    """A run's name: slug, seed and 8 hex digits of what it computes; where and how it runs leaves it unchanged."""
    values = plain(config)
    for key in OUTSIDE_IDENTITY:
        del values[key]
    values["pipeline"] = {"threads": values["pipeline"]["threads"]}
    for group, keys in {"plan": PLAN_SHOWS, "target": SAME_FEATURES}.items():
        for key in keys:
            del values[group][key]
    for key, value in YOUNGER.items():
        group, _, name = key.partition(".")
        if values[group].get(name) == value:
            values[group].pop(name, None)
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    slug = re.sub(r"[^a-z0-9_]+", "-", f"{config.name}-{option_name(config.interleave)}".lower()).strip("-")
    return f"{slug}-s{config.seed}-{sha256(canonical.encode()).hexdigest()[:8]}"


def run_directory(config: Config) -> Path:
    """Where the run lives: `run_dir`, or `runs/<identity>` below the current directory."""
    return Path("runs") / identity(config) if config.run_dir is None else Path(config.run_dir)


@dataclass(frozen=True)
class EvaluateOptions:
    """What `dflash-exp evaluate` was told; None: as the run's own configuration says."""

    target: "TargetConfig | None"
    prompts: str | None
    max_new_tokens: int | None
    temperature: float | None
    limit: int | None
    checkpoint: str | None
    server: str | None = None
    """Where the target and the drafter are served; None: they are decoded in this process."""
    api_key_env: str | None = None
    """The environment variable that holds the server's key; the key itself is never written."""
