"""A drafter of a few hundred parameters, the same one for the same seed, and what a drafter says of one block."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_exp.drafter.attention import GroupedAttention, group_anchors
from dflash_exp.drafter.layout import BlockLayout
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


@torch.no_grad()
def block_logits(drafter: Drafter, features_TF: Tensor, token: int) -> Tensor:
    """Logits of slots 1..K-1 of the block that follows T tokens and begins with `token`, [K - 1, V]."""
    at = torch.tensor([len(features_TF)])
    groups = group_anchors(torch.tensor([1]), at, drafter.shape.n_kv_heads, torch.device("cpu"))
    block = BlockLayout(torch.tensor([token]), at, GroupedAttention(groups))
    return F.linear(drafter(drafter.context(features_TF[None]), block)[0], drafter.head_VH)
