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
    """Of the same parameters, which keep their storage, step after step; the same places on every rank."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._flat = [parameter.detach().view(-1) for parameter in parameters]
        draw = torch.Generator().manual_seed(0)
        self._places = [_places(x, draw) for x in self._flat]
        stands_for = [torch.full((min(DRAWN, len(x)),), max(1.0, len(x) / DRAWN)) for x in self._flat]
        self._stands_for_N = torch.cat(stands_for).to(self._flat[0].device, torch.float64)
        self._before_N = self._now()

    def begin(self) -> None:
        """Take note of where the parameters are."""
        self._before_N = self._now()

    def norm(self) -> Tensor:
        """Of the way since `begin`, 0-dimensional, on the parameters' device, float64."""
        way_N = (self._now() - self._before_N).double()
        return (way_N.square() @ self._stands_for_N).sqrt()

    def _now(self) -> Tensor:
        looked_at = zip(self._flat, self._places, strict=True)
        return torch.cat([x if i is None else x.index_select(0, i) for x, i in looked_at])


def _places(flat: Tensor, draw: torch.Generator) -> Tensor | None:
    """Where a large tensor is looked at, int64, ascending; None: everywhere."""
    if len(flat) <= DRAWN:
        return None
    return torch.randint(len(flat), (DRAWN,), generator=draw).sort().values.to(flat.device)
