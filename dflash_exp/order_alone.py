"""Whether the arms of a sweep differ in the order of their batches alone; asked before the first of them runs.

In: the jobs' configurations. Out: a line to say, or ValueError. Two arms are compared within a seed. Anchors, first
weights and probe follow from the configuration, which may differ in the strategy and its seed; the batches are planned
(tens of milliseconds a job for 5,800 conversations) and compared epoch by epoch, by their hashes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_exp.config import Config, Partial, leaves, plain, within_identity
from dflash_exp.planning import Planned, Readings, plan_run


@dataclass(frozen=True)
class Arm:
    """One job, as far as the question goes."""

    name: str
    """Its directory's."""
    config: Config


@dataclass(frozen=True)
class Trained:
    """What an arm trains on, whatever the order."""

    batches_sha256: tuple[str, ...]
    """Of every epoch that it begins."""
    n_steps: int
    whole_steps: int
    """Optimizer steps that those epochs have."""


def check_order_alone(arms: Sequence[Arm]) -> str | None:
    """A line where runs end within an epoch, as `partial=allow` allows; None where all is equal.

    Raises ValueError where something else than the order differs, or may.
    """
    said, read = None, Readings()
    for seed in dict.fromkeys(arm.config.seed for arm in arms):
        blocks = [arm for arm in arms if arm.config.seed == seed]
        for arm in blocks[1:]:
            check_settings(blocks[0], arm)
        trained = [trained_on(plan_run(arm.config, read)) for arm in blocks]
        check_batches([arm.name for arm in blocks], trained)
        said = check_whole(trained, {arm.config.partial for arm in blocks}) or said
    return said


def trained_on(planned: Planned) -> Trained:
    """What a run of this plan trains on."""
    epochs = [planned.planner.epoch(part.epoch) for part in planned.epochs]
    hashes = tuple(epoch.batches_sha256 for epoch in epochs)
    return Trained(hashes, len(planned.settings), sum(epoch.n_steps for epoch in epochs))


def check_settings(first: Arm, other: Arm) -> None:
    """ValueError, naming what differs, unless two arms differ in the strategy and its seed alone."""
    one, two = leaves(plain(first.config)), leaves(plain(other.config))
    odd = [key for key in sorted(one.keys() | two.keys()) if one.get(key) != two.get(key) and not _may_differ(key)]
    if odd:
        shown = ", ".join(f"{key} ({one.get(key)} and {two.get(key)})" for key in odd[:3])
        raise ValueError(
            f"arms must differ in order alone, {first.name} and {other.name} differ in {shown}; "
            "say analysis.differs_in=setting if that is what you compare"
        )


def check_batches(names: Sequence[str], trained: Sequence[Trained]) -> None:
    """ValueError unless all arms have the same batches in every epoch."""
    for name, arm in zip(names, trained, strict=True):
        if arm.batches_sha256 != trained[0].batches_sha256:
            raise ValueError(
                f"arms must train on the same batches in every epoch, {names[0]} and {name} do not; "
                "say analysis.differs_in=setting if that is what you compare"
            )


def check_whole(trained: Iterable[Trained], partial: set[Partial]) -> str | None:
    """A line where runs end within an epoch and may. Raises ValueError where they may not."""
    cut = next((arm for arm in trained if arm.n_steps < arm.whole_steps), None)
    if cut is None:
        return None
    line = f"after {cut.n_steps} of {cut.whole_steps} steps the arms have trained on different batches"
    if partial == {Partial.ALLOW}:
        return f"{line}; partial=allow lets them"
    raise ValueError(f"{line}; set epochs={len(cut.batches_sha256)}")


def _may_differ(key: str) -> bool:
    return key.startswith("interleave.") or key == "seeds.order" or not within_identity(key)
