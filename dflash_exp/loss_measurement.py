"""One forward of target and drafter over a run's training data: each sequence's loss, nothing learned.

In: the run's configuration and one of its checkpoints. Out: weighted sums of token losses, and of weights, at the
anchors of epoch 0. The batches are those of the run's first epoch, one after the other. Only their composition is
used, which decides no more than the last bits.
"""

# S sequences

from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from dflash_exp.config import Config
from dflash_exp.data.collate import Collator
from dflash_exp.distributed import devices_in_a_row
from dflash_exp.drafter.model import resolve_shape
from dflash_exp.drafter.passes import GroupedPasses
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.models import LoadedTarget, load, weights_fingerprint
from dflash_exp.optim import build_optimizer
from dflash_exp.planning import anchor_rule, plan_run
from dflash_exp.published import load_weights


def measure_losses(
    config: Config, checkpoint: Path, target_fingerprint: str, console: Console
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and weights, float64 [S] each, in the order of the plan's sequences.

    Raises ValueError for a target that is not the one with this fingerprint, and for losses that are not finite.
    """
    devices = devices_in_a_row("cuda" if torch.cuda.is_available() else "cpu", config.target.layer_split)
    target = load(config.target, devices, lambda shape, mask_id: resolve_shape(config.drafter, shape, mask_id))
    if weights_fingerprint(target.model.model) != target_fingerprint:
        raise ValueError(
            f"plan.loss_from must be a run whose target is as it was, the weights in {config.target.path} changed "
            f"since {checkpoint.parents[1]} was begun; take those of then, or another run"
        )
    loss_S, weight_S = _measured(config, target, step_at(config, target, checkpoint), console)
    if not np.isfinite(loss_S).all():
        raise ValueError(
            f"plan.loss_from must be a run whose losses are finite, {np.sum(~np.isfinite(loss_S))} of {len(loss_S)} "
            f"are not at {checkpoint}; take a run that did not diverge"
        )
    return loss_S, weight_S


def step_at(config: Config, target: LoadedTarget, checkpoint: Path) -> DrafterStep:
    """What measures the checkpoint's drafter; its optimizer never takes a step."""
    drafter = target.new_drafter(config.drafter.compute_dtype)
    load_weights(drafter, checkpoint)
    optimizer = build_optimizer(config.optim, drafter.named_parameters())
    passes = GroupedPasses(config.drafter.slots_per_pass)  # one forward: nothing to compile for
    return DrafterStep(drafter, config.loss, optimizer, passes, config.optim.max_grad_norm)


def _measured(
    config: Config, target: LoadedTarget, step: DrafterStep, console: Console
) -> tuple[np.ndarray, np.ndarray]:
    planned = plan_run(config)
    collate = Collator(planned.conversations, anchor_rule(config))
    epoch, rows = planned.planner.epoch(0), planned.conversations.rows
    loss_S, weight_S = np.zeros(len(rows)), np.zeros(len(rows))
    numbers = range(epoch.n_batches)
    for number in track(numbers, "losses", console=console, transient=True, disable=not console.is_terminal):
        plan = epoch.batch(number)
        sums = step.measure_each(target.model(collate(plan)))
        place = np.searchsorted(rows, plan.sequence_rows)
        loss_S[place] = torch.stack([own.loss for own in sums]).tolist()
        weight_S[place] = [own.weight for own in sums]
    return loss_S, weight_S
