"""The direction of a gradient in 4,096 numbers, so that two steps can be compared without a second copy of it.

In: a flat gradient. Out: signed sums of its coordinates. With random signs the inner product of two sketches is that of
the gradients, in expectation; the standard error of a cosine c is sqrt((1 + c^2) / 4096), about .016 to .022, where no
few coordinates hold most of the norm. A sketch is linear: that of a sum is the sum of sketches.

The sign of coordinate i is row_sign[i // M] x column_sign[i % M] with M = 262,144, and its place i % 4096: so the whole
is one matrix-vector product over the buffer as it lies, and 1 MB besides. A seeded choice of 4,096 coordinates costs
less, but follows the few large coordinates of a gradient badly.
"""

# N coordinates, R rows, M = 64 x 4096 columns

from __future__ import annotations

import torch
from torch import Tensor

SIZE = 4096
COLUMNS = 64 * SIZE


class GradientSketch:
    """Of gradients of one length; the same seed gives the same sketch on every rank and machine."""

    def __init__(self, like: Tensor, seed: int) -> None:
        """`like`: a gradient, for its length, dtype and device."""
        draw = torch.Generator().manual_seed(seed)
        self._n_rows = len(like) // COLUMNS
        self._row_sign_R = _signs(self._n_rows + 1, draw).to(like)
        self._column_sign_M = _signs(COLUMNS, draw).to(like)

    @torch.no_grad()
    def __call__(self, gradient: Tensor) -> Tensor:
        """float64 [4096], on the CPU (waits for the device)."""
        whole = self._n_rows * COLUMNS
        sums_M = self._row_sign_R[:-1] @ gradient[:whole].view(self._n_rows, COLUMNS)
        rest = gradient[whole:]
        sums_M[: len(rest)] += self._row_sign_R[-1] * rest
        return (sums_M * self._column_sign_M).view(-1, SIZE).sum(0).to("cpu", torch.float64)


class Direction:
    """How much of a step's gradient points where the one before did."""

    def __init__(self, sketch: GradientSketch) -> None:
        self.sketch = sketch
        self._before: Tensor | None = None

    def turn(self, gradient: Tensor) -> float | None:
        """Cosine of a gradient and the one before, to 6 digits: more follow the order in which ranks add up in fp32.
        None for the first. One that is zero or not finite is passed over, as if its step had not been."""
        now = self.sketch(gradient)
        norm = float(now.norm())
        if not 0 < norm < float("inf"):
            return None
        before, self._before = self._before, now / norm
        return None if before is None else round(float(before @ self._before), 6)

    def state(self) -> list[Tensor]:
        """The last gradient's sketch, if there was one."""
        return [] if self._before is None else [self._before]

    def load_state(self, state: list[Tensor]) -> None:
        """Go on from what `state` gave."""
        self._before = state[0] if state else None


def _signs(n: int, draw: torch.Generator) -> Tensor:
    return torch.randint(2, (n,), generator=draw, dtype=torch.int8) * 2 - 1
