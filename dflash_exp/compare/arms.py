"""Which runs belong together: what differs between them, seeds apart, found from their configurations.

In: runs. Out: arms, each a setting with its runs by seed. An arm is called by what was typed for it and not for the
others (`interleave=shuffle`), or, where that does not tell the arms apart, by the keys in which they differ. Where all
runs have one `seed` and differ in `seeds.*` alone, as those of `noise_floor` do, each stream that was drawn anew is an
arm.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_exp.compare.runs import Run

STREAMS = ("init", "data", "anchors", "order")
Block = tuple[int, ...]
"""The seed, and that of each stream."""
NO_SETTING = re.compile(
    r"(name|run_dir|force|evaluate|partial|seed|seeds\..*|(telemetry|checkpoint|profile)\..*"
    r"|plan\.(out|tokens_per_s|speed_from|loss_from))$"
)
"""Keys that say where a run is, how it is watched, or which draw it is."""
NO_NAME = ("seed", "seeds", "sweeps", "hydra", "analysis", "run_dir", "telemetry")


@dataclass(frozen=True, eq=False)
class Arm:
    """One setting."""

    label: str
    names: frozenset[str]
    """What it may be called by: overrides, `key=value`, `group=option`."""
    runs: Mapping[Block, Run]


def block_of(run: Run) -> Block:
    """Runs of one block are compared with one another."""
    return (run.config["seed"], *(run.config[f"seeds.{name}"] for name in STREAMS))


def block_names(blocks: Sequence[Block]) -> list[str]:
    """What to call each: its seed, or the stream that was drawn anew."""
    if len({block[0] for block in blocks}) > 1 or len(blocks) == 1:
        return [str(block[0]) for block in blocks]
    return [
        " ".join(f"{name} {seed}" for name, seed in zip(STREAMS, block[1:], strict=True) if seed != block[0]) or
        str(block[0]) for block in blocks
    ]  # fmt: skip


def group_arms(runs: Sequence[Run]) -> tuple[list[Arm], list[Run]]:
    """The arms in the order of their first runs, and runs of an arm and seed that is there already."""
    one_seed = len({run.config["seed"] for run in runs}) == 1
    grouped: dict[tuple[object, ...], dict[Block, Run]] = {}
    doubles = []
    for run in runs:
        own = grouped.setdefault(_setting(run, one_seed), {})
        if block_of(run) in own:
            doubles.append(run)
        else:
            own[block_of(run)] = run
    members = list(grouped.values())
    firsts = [next(iter(own.values())) for own in members]
    labels = _labels(members, firsts, one_seed)
    return [
        Arm(label, _names(own), own) for label, own in zip(labels, members, strict=True)
    ], doubles  # fmt: skip


def differing(runs: Sequence[Run]) -> list[str]:
    """Keys in which the settings of runs differ, one that only some of them have too."""
    keys = sorted({key for run in runs for key in run.config if not NO_SETTING.match(key)})
    return [key for key in keys if len({_text(run.config.get(key)) for run in runs}) > 1]


def _setting(run: Run, one_seed: bool) -> tuple[object, ...]:
    given = {key: value for key, value in run.config.items() if value is not None}  # null, or younger than the run
    held = tuple(sorted((key, _text(value)) for key, value in given.items() if not NO_SETTING.match(key)))
    return held + (_drawn_anew(run) if one_seed else ())


def _drawn_anew(run: Run) -> tuple[str, ...]:
    return tuple(f"seeds.{name}" for name in STREAMS if run.config[f"seeds.{name}"] != run.config["seed"])


def _labels(members: Sequence[Mapping[Block, Run]], firsts: Sequence[Run], one_seed: bool) -> list[str]:
    typed = [set.intersection(*(set(_typed(run)) for run in own.values())) for own in members]
    shared = set.intersection(*typed)
    labels = [
        " ".join(each for each in _typed(run) if each in own - shared) for run, own in zip(firsts, typed, strict=True)
    ]
    if len(set(labels)) < len(labels) or "" in labels:
        keys = differing(firsts)
        labels = [" ".join(_by_config(run, keys)) for run in firsts]
    if len(set(labels)) < len(labels) or labels == [""]:
        drawn = [
            " ".join((*([label] if label else []), *_drawn_anew(run)))
            for label, run in zip(labels, firsts, strict=True)
        ]
        labels = drawn if one_seed and any(map(_drawn_anew, firsts)) else labels
    return [label or "all runs" for label in labels]


def _typed(run: Run) -> list[str]:
    return [each for each in run.overrides if re.split(r"[.=]", each.lstrip("+~"))[0] not in NO_NAME]


def _by_config(run: Run, keys: Sequence[str]) -> list[str]:
    """`group=option` where the group's class differs, else `key=value`, of the keys that the run has."""
    groups = {key.removesuffix("._target_") for key in keys if key.endswith("._target_")}
    said = [f"{group}={_option(run.config[f'{group}._target_'])}" for group in sorted(groups)]
    rest = [key for key in keys if key in run.config and not key.endswith("._target_")]
    return said + [f"{key}={_text(run.config[key])}" for key in rest]


def _names(own: Mapping[Block, Run]) -> frozenset[str]:
    run = next(iter(own.values()))
    options = {
        f"{key.removesuffix('._target_')}={_option(value)}"
        for key, value in run.config.items()
        if key.endswith("._target_")
    }
    typed = set.intersection(*(set(_typed(each)) for each in own.values()))
    return frozenset(options | typed | {f"{key}={_text(value)}" for key, value in run.config.items()})


def _option(target: str) -> str:
    """stride_jitter, of dflash_exp.plan.interleave.StrideJitter."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.rpartition(".")[2]).lower()


def _text(value: Any) -> str:
    """As one types it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"[{','.join(_text(item) for item in value)}]" if isinstance(value, list) else str(value)


def find_arm(arms: Sequence[Arm], wanted: str, what: str) -> Arm:
    """The arm of that label, or the only one that goes by all its parts; raises ValueError, listing the arms."""
    parts = wanted.split()
    found = [arm for arm in arms if arm.label == wanted] or [arm for arm in arms if arm.names.issuperset(parts)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(arm.label for arm in arms)
    got = f"{wanted}, which is none of them" if not found else f"{wanted}, which fits {len(found)} of them"
    raise ValueError(f"{what} must name one of the arms, got {got}; the arms are {listed}")
