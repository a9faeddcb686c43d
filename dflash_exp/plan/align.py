"""Order to the contents of each optimizer step, dealt to ranks.

A step holds the next `batches_per_step` batches of the order, on however many ranks; steps never straddle epochs,
so the last one holds what remains. Inside a step the order is free (the loss is a sum), which is what an aligner
may use: `NoAlign` does not.
"""

# N batches

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def step_bounds(n_batches: int, batches_per_step: int) -> np.ndarray:
    """Where each step begins in the order, and the end of the last: int64 [n_steps + 1]."""
    begins = np.arange(0, n_batches, batches_per_step, dtype=np.int64)
    return np.append(begins, n_batches)


@dataclass(frozen=True)
class NoAlign:
    """Deal a step's batches to the ranks as they come, one each in turn."""

    def deal(self, numbers: range, n_ranks: int) -> list[range]:
        """The positions in the order that each rank trains, for a step's positions; a rank may get none."""
        return [numbers[rank::n_ranks] for rank in range(n_ranks)]
