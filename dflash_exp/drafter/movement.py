"""How far a step moved the parameters, from 1,024 numbers of each, so that no second copy of them is kept.

In: the parameters, before and after. Out: the L2 norm of the difference. A tensor of at most 1,024 numbers counts
whole, of a larger one as many drawn places do, scaled up: unbiased in the square. An optimizer that moves every number
about as far, as AdamW, is told to 1 %; one that moves few of a matrix's numbers is told badly.
"""

# N numbers looked at, of all parameters

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

DRAWN = 1024


class Movement:
    """Of the same parameters, step after step; the same places on every rank."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        draw = torch.Generator().manual_seed(0)
        self._places = [_places(one, draw) for one in self._parameters]
        stands_for = [torch.full((min(DRAWN, p.numel()),), max(1.0, p.numel() / DRAWN)) for p in self._parameters]
        self._stands_for_N = torch.cat(stands_for).to(self._parameters[0].device, torch.float64)
        self._before_N = self._now()

    def begin(self) -> None:
        """Take note of where the parameters are."""
        self._before_N = self._now()

    def norm(self) -> Tensor:
        """Of the way since `begin`, 0-dimensional, on the parameters' device, float64."""
        way_N = (self._now() - self._before_N).double()
        return (way_N.square() @ self._stands_for_N).sqrt()

    @torch.no_grad()
    def _now(self) -> Tensor:
        flat = (parameter.flatten() for parameter in self._parameters)
        return torch.cat([x if i is None else x[i] for x, i in zip(flat, self._places, strict=True)])


def _places(parameter: Tensor, draw: torch.Generator) -> Tensor | None:
    """Where a large tensor is looked at, int64, ascending; None: everywhere."""
    if parameter.numel() <= DRAWN:
        return None
    return torch.randint(parameter.numel(), (DRAWN,), generator=draw).sort().values.to(parameter.device)
