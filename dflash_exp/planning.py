"""A run's plan from its configuration: ids, lengths and weights, no model. The verb `plan` shows it.

In: a checked `Config`. Out: `Planned` (every optimizer step of the run, and what the plan knows of each), or plan.json.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_exp.composition import LossCurve, SequenceLosses, loss_curve, loss_figures
from dflash_exp.config import Config
from dflash_exp.console import LastingConsole
from dflash_exp.data.store import Conversations, read_split
from dflash_exp.drafter.anchors import candidates, choose_anchors, expected_weight
from dflash_exp.durable import write_folder
from dflash_exp.measured import Measured, measure
from dflash_exp.messages import BatchPlan
from dflash_exp.optim import AdamW, Muon, peak_scale, schedule_scale
from dflash_exp.pipeline.drafter_train import StepSetting
from dflash_exp.plan.align import Align
from dflash_exp.plan.cost import StageCosts, plan_work, slower_stage, stage_costs
from dflash_exp.plan.diagnosis import diagnose, diagnose_order
from dflash_exp.plan.epoch import EpochPlan, Planner, PlanSettings, draw_order
from dflash_exp.plan.run_length import EpochSteps, RunLength, resolve_length
from dflash_exp.plan.sequences import Sequences
from dflash_exp.pricing import price
from dflash_exp.run_directory import free_directory, write_json
from dflash_exp.suggest import ConfigError
from dflash_exp.summary import print_loss_from, print_plan


@dataclass(frozen=True)
class Deal:
    """How each step's batches are dealt to ranks, and which of them this is."""

    align: Align
    rank: int
    n_ranks: int
    costs: StageCosts
    block_size: int

    def cost(self, epoch: EpochPlan) -> np.ndarray:
        """Each batch's in the slower stage, float64 [N] in the order of training."""
        return slower_stage(*stage_costs(plan_work(epoch, self.block_size), self.costs))[epoch.drawn]


@dataclass(frozen=True)
class Planned:
    """Everything about a run that follows from ids and lengths."""

    conversations: Conversations
    planner: Planner
    epochs: list[EpochSteps]
    settings: list[StepSetting]
    """One for each optimizer step of the run."""

    def steps(self, first: int = 0) -> Iterator[tuple[BatchPlan, ...]]:
        """The batches of every optimizer step from the run's step `first` on; no epoch before it is built."""
        for part in self.epochs:
            if first < part.n_steps:
                epoch = self.planner.epoch(part.epoch)
                yield from (epoch.step(step) for step in range(first, part.n_steps))
            first = max(0, first - part.n_steps)

    def rank_steps(self, first: int, deal: Deal) -> Iterator[tuple[BatchPlan, ...]]:
        """What one rank trains of every optimizer step from the run's step `first` on; perhaps nothing of some."""
        for part in self.epochs:
            if first < part.n_steps:
                epoch = self.planner.epoch(part.epoch)
                cost_N = deal.cost(epoch)
                for step in range(first, part.n_steps):
                    batches = epoch.step(step)
                    begin = batches[0].number
                    numbers = range(begin, begin + len(batches))
                    own = deal.align.deal(numbers, deal.n_ranks, cost_N[begin : begin + len(batches)])[deal.rank]
                    yield tuple(batches[number - begin] for number in own)
            first = max(0, first - part.n_steps)

    def hashes(self) -> dict[str, str]:
        """Of the first epoch, as plan.json states them."""
        first = self.planner.epoch(0)
        return {
            "batches_sha256": first.batches_sha256,
            "order_sha256": first.order_sha256,
            "plan_sha256": first.plan_sha256,
        }

    def epochs_begun(self, n_steps: int) -> int:
        """Epochs of which the first `n_steps` optimizer steps of the run hold at least one."""
        begins = np.cumsum([0] + [part.n_steps for part in self.epochs[:-1]])
        return int((begins < n_steps).sum())

    def n_tokens(self) -> int:
        """Real tokens of the whole run; only its last epoch may be cut."""
        sequences, last = self.planner.sequences, self.epochs[-1]
        in_last = self.planner.epoch(last.epoch).step_sums(sequences.lengths)[: last.n_steps]
        return (len(self.epochs) - 1) * sequences.n_tokens + int(in_last.sum())


@dataclass(frozen=True)
class Reading:
    """What a plan is made from, in the order of the conversations that are used."""

    conversations: Conversations
    sequences: Sequences
    supervised: np.ndarray
    """Supervised tokens of each."""


def read_sequences(config: Config) -> Reading:
    """Raises ValueError for data that cannot be read or used."""
    conversations = read_split(config.data.folder, "train", token_limit(config), config.data.too_long)
    anchors, weights = _expectations(config, conversations)
    sequences = Sequences(conversations.lengths[conversations.rows], conversations.rows, weights, anchors)
    supervised = np.array([conversations.supervised(row).sum() for row in conversations.rows])
    return Reading(conversations, sequences, supervised)


class Readings:
    """`read_sequences`, once for all configurations that share data and drafter: .4 s a run of a sweep saved."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], Reading] = {}

    def __call__(self, config: Config) -> Reading:
        """As `read_sequences`."""
        drafter = config.drafter
        key = (config.data, token_limit(config), drafter.anchors, drafter.block_size, config.loss.gamma)
        if key not in self._held:
            self._held[key] = read_sequences(config)
        return self._held[key]


def plan_run(config: Config, read: Callable[[Config], Reading] = read_sequences) -> Planned:
    """Lengths -> buckets -> batches -> order -> steps, for the whole run. Raises ValueError for what cannot be."""
    reading = read(config)
    settings = PlanSettings(config.buckets, config.batches, config.interleave, config.batches_per_step, config.seeds)
    planner = Planner(reading.sequences, settings)
    epochs = resolve_length(RunLength(config.epochs, config.steps, config.tokens), planner.epoch)
    of_steps = step_settings(planner, epochs, reading.supervised, config.optim)
    return Planned(reading.conversations, planner, epochs, of_steps)


def token_limit(config: Config) -> int | None:
    """The longest sequence that is kept as it is: the smaller of data.max_tokens and the budget; None without both."""
    limits = [limit for limit in (config.data.max_tokens, config.batches.budget_tokens) if limit is not None]
    return min(limits, default=None)


def anchor_rule(config: Config) -> Callable[[int, int, np.ndarray], np.ndarray]:
    """(epoch, row, supervised mask) -> anchors: a function of the sequence alone."""
    seed, n_anchors = config.seeds.anchors, config.drafter.anchors
    return lambda epoch, row, supervised: choose_anchors(seed, epoch, row, candidates(supervised), n_anchors)


def step_settings(
    planner: Planner, epochs: list[EpochSteps], supervised: np.ndarray, optim: AdamW | Muon
) -> list[StepSetting]:
    """Share of the run's supervised tokens at the middle of each step; its epoch's constant, and what that makes of
    the learning rate."""
    sums: list[np.ndarray] = []
    constants: list[float] = []
    for part in epochs:
        plan = planner.epoch(part.epoch)
        sums.append(plan.step_sums(supervised)[: part.n_steps])
        constants += [plan.weight_per_step or 0.0] * part.n_steps
    whole = np.concatenate(sums)
    shares = (np.cumsum(whole) - whole / 2) / max(1, whole.sum())
    n_batches = planner.settings.batches_per_step
    return [
        StepSetting(float(share), weight, n_batches, peak_scale(optim, weight))
        for share, weight in zip(shares, constants, strict=True)
    ]


def plan_document(config: Config, planned: Planned, measured: Measured | None = None) -> dict[str, Any]:
    """plan.json of the first epoch; lr_share is null where the run ends within it. Raises ValueError for a target that
    is not one."""
    first = planned.planner.epoch(0)
    optim = config.optim
    peak_lr = optim.lr * planned.settings[0].peak_scale
    shares = [setting.share for setting in planned.settings[: first.n_steps]]
    scales = [schedule_scale(share, optim.schedule, optim.warmup_share, optim.decay_share) for share in shares]
    document = diagnose(first, peak_lr * np.array(scales) if len(scales) == first.n_steps else None)
    return document | {"peak_lr": peak_lr} | asdict(price(config, first, planned.n_tokens(), measured))


def show_plan(config: Config, speed_from: Config | None, losses: SequenceLosses | None) -> int:
    """Print an epoch; write plan.json, plan.png and order.npy to `plan.out`, or beside it where that exists.

    `speed_from` is the configuration of the run that `plan.speed_from` names. With the losses of the plan's sequences
    also loss.npy and loss.png, the curve of this order at fixed parameters.
    """
    console = LastingConsole()
    try:
        order, document, curve = _shown(config, speed_from, losses)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    print_plan(console, document)
    print_loss_from(console, document)
    out = free_directory(Path(config.plan.out))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_folder(out, lambda folder: write_plan(folder, order, document, curve))
    files = "plan.json, plan.png" if curve is None else "plan.json, plan.png, loss.npy, loss.png"
    console.print(f"{files} and order.npy are in {out}", highlight=False)
    return 0


def write_plan(folder: Path, order: np.ndarray, document: Mapping[str, object], curve: LossCurve | None) -> None:
    """plan.json, the picture of it and the order int32 [N], into an empty folder; the curve and its picture, too."""
    from dflash_exp.compare.plan_figure import plan_png  # matplotlib takes .5 s, which a run does not need

    write_json(folder / "plan.json", document)
    (folder / "plan.png").write_bytes(plan_png(order, document))
    np.save(folder / "order.npy", order)
    if curve is not None:
        from dflash_exp.compare.loss_figure import ShownCurve, loss_png

        shown = ShownCurve(curve.loss, curve.median, curve.jumps)
        (folder / "loss.png").write_bytes(loss_png(shown, order, document))
        np.save(folder / "loss.npy", curve.loss.astype(np.float32))


Shown = tuple[np.ndarray, Mapping[str, Any], LossCurve | None]
"""An order int32 [N], its plan.json, and its loss at fixed parameters where that is asked for."""


def _shown(config: Config, speed_from: Config | None, losses: SequenceLosses | None) -> Shown:
    if config.plan.counts is not None:
        return _counted_plan(config)
    planned = plan_run(config)
    measured = None if speed_from is None else measured_speed(Path(config.plan.speed_from or ""), speed_from)
    epoch, document = planned.planner.epoch(0), plan_document(config, planned, measured)
    if losses is None:
        return epoch.order, document, None
    curve = loss_curve(epoch, losses)
    return epoch.order, document | {"loss_from": loss_figures(curve, losses)}, curve


def measured_speed(run_dir: Path, run: Config) -> Measured:
    """What the records of a run with this configuration say of its speed; raises ValueError."""
    planned = plan_run(run)
    return measure(run_dir, planned.planner, planned.epochs, run.drafter.block_size)


def _counted_plan(config: Config) -> Shown:
    counts = np.array(config.plan.counts)
    order = draw_order(config.interleave, counts, config.seeds, 0)
    return order, diagnose_order(order, counts, config.interleave, config.batches_per_step, config.seeds, 0), None


def _expectations(config: Config, conversations: Conversations) -> tuple[np.ndarray, np.ndarray]:
    """Anchors and expected loss weight of every sequence."""
    drafter, gamma = config.drafter, config.loss.gamma
    masks = (conversations.supervised(row) for row in conversations.rows)
    found = [expected_weight(mask, drafter.anchors, drafter.block_size, gamma) for mask in masks]
    return np.array([n for n, _ in found]), np.array([weight for _, weight in found])
