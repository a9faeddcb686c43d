"""What the paper reports of the drafters that z-lab publishes: figures to stand beside measured ones, never among them.

Source: arXiv:2602.06036 v2, table 1: T = 0, thinking off, tau as the mean of per-prompt means, the speed-up of its
machine.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from dflash_exp.drafter.shape import DrafterShape

SOURCE = "arXiv:2602.06036 v2, table 1: T = 0, thinking off; tau is the mean over prompts, the speed-up its machine's"


@dataclass(frozen=True)
class Reported:
    """One cell of the table."""

    benchmark: str
    speedup: float
    tau_macro: float


@dataclass(frozen=True)
class Published:
    """A drafter, its target, both by hub id, and its row."""

    drafter: str
    target: str
    hidden_size: int
    n_target_layers: int
    n_layers: int
    block_size: int
    row: tuple[Reported, ...]

    def is_this(self, folder: Path, shape: DrafterShape, target: str) -> bool:
        """By name and by size: a drafter of one's own may have either."""
        sizes = ("hidden_size", "n_target_layers", "n_layers", "block_size")
        same = all(vars(shape)[name] == vars(self)[name] for name in sizes)
        return (
            same
            and _is_named(folder.resolve(), self.drafter)
            and (target == self.target or _is_named(Path(target).resolve(), self.target))
        )


def _row(*figures: tuple[float, float]) -> tuple[Reported, ...]:
    names = ("GSM8K", "MATH500", "HumanEval", "MBPP", "MT-Bench")
    return tuple(Reported(name, speedup, tau) for name, (speedup, tau) in zip(names, figures, strict=True))


PUBLISHED = (
    Published(
        "z-lab/Qwen3-4B-DFlash-b16", "Qwen/Qwen3-4B", 2560, 36, 5, 16,
        _row((5.15, 6.53), (6.09, 7.84), (5.21, 6.64), (4.78, 6.09), (2.85, 4.35)),
    ),
    Published(
        "z-lab/Qwen3-8B-DFlash-b16", "Qwen/Qwen3-8B", 4096, 36, 5, 16,
        _row((5.15, 6.54), (6.08, 7.87), (5.14, 6.50), (4.65, 5.95), (2.75, 4.24)),
    ),
)  # fmt: skip


def reported(folder: Path, shape: DrafterShape, target: str, prompts: str | None) -> Reported | None:
    """The paper's figures for this drafter, target and file of prompts, which is named after its benchmark; None where
    one of the three is not the paper's."""
    benchmark = _plain(Path(prompts or "").name.partition(".")[0])
    cells = (cell for one in PUBLISHED if one.is_this(folder, shape, target) for cell in one.row)
    return next((cell for cell in cells if _plain(cell.benchmark) == benchmark), None)


def _is_named(folder: Path, hub_id: str) -> bool:
    """A folder of that name, or the hub's own cache of it."""
    return folder.name == hub_id.partition("/")[2] or f"models--{hub_id.replace('/', '--')}" in folder.parts


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
