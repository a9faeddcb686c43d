"""The drafter's dimensions, which are its target's, and which of the target's layers it taps.

In: the target's sizes. Out: a frozen `DrafterShape` that layers, model and export read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class TargetDims(Protocol):
    """What the drafter takes over from its target."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...


@dataclass(frozen=True)
class DrafterShape:
    """The drafter's dimensions, resolved; what an export writes to config.json."""

    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_layers: int
    block_size: int
    vocab_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    rope_theta: float
    rms_norm_eps: float
    n_target_layers: int | None
    """None: of a published drafter that does not say it."""


def target_layer_ids(n_target_layers: int, n_taps: int) -> tuple[int, ...]:
    """round(1 + i*(L-4)/(n-1)), i = 0..n-1; one tap: [L // 2] (z-lab/dflash, model.py). 0-based.

    Raises ValueError when two taps would fall on one layer.
    """
    if n_taps == 1:
        return (n_target_layers // 2,)
    ids = tuple(round(1 + i * (n_target_layers - 4) / (n_taps - 1)) for i in range(n_taps))
    if len(set(ids)) < n_taps or ids[-1] < ids[0]:
        raise ValueError(
            f"drafter.taps must be {n_taps} different layers, got {list(ids)} for a target of {n_target_layers} layers;"
            " lower drafter.n_layers or give drafter.taps"
        )
    return ids
