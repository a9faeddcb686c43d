"""What each arm of a comparison would record with nothing learned, from losses that one of its runs keeps.

In: the directories of runs of one seed. Out: by a run's name, the loss of each step of its first epoch at the
parameters of the run whose losses are kept (`plan.loss_from` left them). Nothing is computed anew but the plans.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def has_losses(run_dir: Path) -> bool:
    """Whether a run keeps what its sequences cost."""
    return any((run_dir / "losses").glob("*.safetensors"))


def curves_of(run_dirs: Sequence[Path]) -> tuple[dict[str, np.ndarray], str | None]:
    """The curves, and why there are none where the losses are of something else; nothing where none are kept."""
    source = next((run_dir for run_dir in run_dirs if has_losses(run_dir)), None)
    if source is None:
        return {}, None
    from dflash_exp.composition import loss_curve
    from dflash_exp.door import load
    from dflash_exp.planning import plan_run
    from dflash_exp.sequence_losses import kept_losses

    curves = {}
    try:
        for run_dir in run_dirs:
            config = load(run_dir / "config.yaml")
            losses = kept_losses(config, source)
            if losses is not None:
                curves[run_dir.name] = loss_curve(plan_run(config).planner.epoch(0), losses).loss
    except ValueError as error:
        return {}, f"the curves with nothing learned are left out: {error}"
    return curves, None
