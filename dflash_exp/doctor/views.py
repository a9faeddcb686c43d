"""Drafts of blocks that see more than they may: a drafter that does better with it was trained with it.

In: a drafter, the features of one text, places in it. Out: tokens drafted there. The right view is the one that
decoding has: the context strictly before the block, and the block itself. The others are what faulty training shows.
"""

# T context tokens, L tokens of a text, F features, A anchors, K block slots, S = K - 1, Q query slots, M key/value
# heads, R query heads of a key/value head, E head dim, C columns

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_exp.drafter.layout import BlockLayout
from dflash_exp.drafter.model import Drafter

SCORES = 2**26
"""Of attention alive at once, unless one block has more: 64 blocks of 16 slots and 32 heads, on a text of 8,000 tokens,
have 300M, thrice in fp32."""


@dataclass(frozen=True)
class View:
    """What a block sees beside itself."""

    name: str
    ahead: int
    """Context tokens from the block's first one on: 0 is right."""
    across: bool = False
    """The other blocks of its text: False is right."""


def views(block_size: int) -> tuple[View, ...]:
    """Those that faulty training shows, as said of the drafter."""
    return (
        View("the features of the block's own first token", 1),
        View("the features of the tokens that it drafts", block_size),
        View("the other blocks of its sequence", 0, across=True),
    )


@torch.no_grad()
def drafts_in_view(drafter: Drafter, features_TF: Tensor, tokens_L: Tensor, positions_A: Tensor, view: View) -> Tensor:
    """What is drafted after each of the tokens at `positions_A`, int64 [A, S], all blocks in one pass.

    Memory: `SCORES` scores and one block's logits. Tokens and positions lie on the CPU.
    """
    device = drafter.fc.weight.device
    attend = Dense(positions_A.to(device), view)
    blocks = BlockLayout(tokens_L[positions_A].to(device), positions_A.to(device), attend)
    hidden_ASH = drafter(drafter.context(features_TF[None]), blocks)
    return torch.stack([F.linear(block_SH, drafter.head_VH).argmax(-1) for block_SH in hidden_ASH])


@dataclass(frozen=True)
class Dense:
    """Attention over everything, with a mask: `layout.Attend` for the blocks of one text."""

    position_A: Tensor
    view: View

    def __call__(self, q_AMQRE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor) -> Tensor:
        n_anchors, size = len(k_AMKE), k_AMKE.shape[2]
        k_MCE, v_MCE = (
            torch.cat([context_BMTE[0], block_AMKE.transpose(0, 1).flatten(1, 2)], dim=1)
            for context_BMTE, block_AMKE in ((k_BMTE, k_AMKE), (v_BMTE, v_AMKE))
        )
        seen_AC = self._seen(k_BMTE.shape[2], n_anchors, size)
        n_at_once = max(1, SCORES // (q_AMQRE[0, ..., 0].numel() * seen_AC.shape[1]))
        parts = zip(q_AMQRE.split(n_at_once), seen_AC.split(n_at_once), strict=True)
        return torch.cat([_attended(q_aMQRE, k_MCE, v_MCE, seen_aC) for q_aMQRE, seen_aC in parts])

    def _seen(self, n_context: int, n_anchors: int, size: int) -> Tensor:
        """Bool [A, T + A * K]."""
        device = self.position_A.device
        before_AT = torch.arange(n_context, device=device) < self.position_A[:, None] + self.view.ahead
        block_AA = torch.eye(n_anchors, dtype=torch.bool, device=device) | self.view.across
        return torch.cat([before_AT, block_AA.repeat_interleave(size, dim=1)], dim=1)


def _attended(q_AMQRE: Tensor, k_MCE: Tensor, v_MCE: Tensor, seen_AC: Tensor) -> Tensor:
    """[A, M, Q, R, E], of queries that are scaled; the softmax in fp32."""
    scores_AMQRC = torch.einsum("amqre,mce->amqrc", q_AMQRE, k_MCE)
    weights = scores_AMQRC.float().masked_fill(~seen_AC[:, None, None, None], -math.inf).softmax(-1)
    return torch.einsum("amqrc,mce->amqre", weights.to(v_MCE.dtype), v_MCE)
