"""One rank of a run in float64, or in which something goes wrong: `python rank_script.py HOW CONFIG OVERRIDES`."""

import errno
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dflash_exp import checkpoint
from dflash_exp.drafter.model import ComputeDtype, Drafter
from dflash_exp.messages import TargetFeatures, TokenBatch
from dflash_exp.models import LoadedTarget
from dflash_exp.pipeline.drafter_train import DrafterTrainer
from dflash_exp.rank import main
from dflash_exp.target import FrozenTarget

AT_STEP = 3
RANK = int(os.environ.get("RANK", "0"))
plain_drafter, plain_meet, plain_target = LoadedTarget.new_drafter, DrafterTrainer.meet, FrozenTarget.__call__


def double(self: LoadedTarget, compute: ComputeDtype, device: torch.device | None = None) -> Drafter:
    """The drafter in float64, where sums in another order differ by 1e-16 (a checkpoint would keep it in fp32)."""
    return plain_drafter(self, compute, device).double()


def before_meeting(act: Callable[[], Any]) -> Callable[..., None]:
    """The meeting, before which this rank does something at step 3."""
    n_met = 0

    def meet(self: DrafterTrainer) -> None:
        nonlocal n_met
        n_met += 1
        if n_met == AT_STEP:
            act()
        plain_meet(self)

    return meet


def target_that(act: Callable[[TargetFeatures], TargetFeatures]) -> Callable[..., TargetFeatures]:
    """The target, which does something to a batch of step 3."""

    def call(target: FrozenTarget, batch: TokenBatch) -> TargetFeatures:
        features = plain_target(target, batch)
        trained = batch.plan.epoch == 0 and batch.plan.step == AT_STEP - 1
        return act(features) if trained else features

    return call


def fail(_: TargetFeatures) -> TargetFeatures:
    raise ArithmeticError("the target's own")


def spoil(features: TargetFeatures) -> TargetFeatures:
    return TargetFeatures(features.batch, features.features_PF * math.nan)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def arrange(fault: str) -> None:
    """What goes wrong, on the rank where it does."""
    if fault == "double":
        LoadedTarget.new_drafter = double
    if fault == "disk" and RANK == 0:
        checkpoint._fill = full_disk
    if RANK != 1:
        return
    acts = {
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "hang": lambda: time.sleep(600),
        "stop": lambda: os.kill(os.getpid(), signal.SIGTERM),
    }
    if fault in acts:
        DrafterTrainer.meet = before_meeting(acts[fault])  # type: ignore[method-assign]
    if fault == "raise":
        FrozenTarget.__call__ = target_that(fail)
    if fault == "spoil":
        FrozenTarget.__call__ = target_that(spoil)


if __name__ == "__main__":
    torch.set_num_threads(1)
    arrange(sys.argv[1])
    code = main(Path(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    os._exit(code)
