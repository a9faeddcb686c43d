"""A drafter of a few hundred parameters, and the same one for the same seed."""

import torch

from dflash_exp.drafter.model import Drafter, initialise
from dflash_exp.drafter.shape import DrafterShape

SHAPE = DrafterShape(
    hidden_size=8, intermediate_size=12, n_heads=2, n_kv_heads=1, head_dim=4, n_layers=2, block_size=4, vocab_size=20,
    mask_token_id=1, target_layer_ids=(0, 2), rope_theta=500.0, rms_norm_eps=1e-5, n_target_layers=4,
)  # fmt: skip


def drafter_of(shape: DrafterShape = SHAPE, seed: int = 0) -> Drafter:
    drafter = Drafter(shape, *torch.zeros(2, shape.vocab_size, shape.hidden_size))
    initialise(drafter, seed)
    return drafter
