"""Drafting for one growing sequence, with the context's keys and values kept.

In: features of committed tokens, then a bonus token. Out: the K - 1 tokens that the drafter expects next. The block
runs through the same forward as in training, so what was trained is what drafts.
"""

# T committed tokens, F features, K block slots, S = K - 1, H hidden

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_exp.drafter.attention import group_anchors
from dflash_exp.drafter.layout import BlockLayout
from dflash_exp.drafter.model import Context, Drafter


class DraftSession:
    """Drafting for one growing sequence: context keys and values are kept, each committed token enters once."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.block_size = drafter.shape.block_size
        self._context: Context = []
        self._n_committed = 0

    @torch.no_grad()
    def extend(self, features_TF: Tensor) -> None:
        """Take in the tapped hidden states of the next committed tokens, in order; none is allowed."""
        fresh = self.drafter.context(features_TF[None], first=self._n_committed)
        if self._context:
            pairs = zip(self._context, fresh, strict=True)
            fresh = [(torch.cat([k, k_new], 2), torch.cat([v, v_new], 2)) for (k, v), (k_new, v_new) in pairs]
        self._context = fresh
        self._n_committed += len(features_TF)

    @torch.no_grad()
    def propose(self, bonus: int) -> Tensor:
        """The drafted tokens after `bonus`, which follows the committed tokens; int64 [K - 1], argmax always.

        Raises ValueError before the first `extend`.
        """
        if not self._context:
            raise ValueError("a draft needs context: extend got no features yet; call extend before propose")
        position = torch.tensor([self._n_committed])
        device = self.drafter.fc.weight.device
        groups = group_anchors(torch.tensor([1]), position, self.drafter.shape.n_kv_heads, device)
        blocks = BlockLayout(torch.tensor([bonus], device=device), position.to(device), groups)
        hidden_SH = self.drafter(self._context, blocks)[0]
        return F.linear(hidden_SH, self.drafter.head_VH).argmax(-1)
