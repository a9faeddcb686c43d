"""Drafting for one growing sequence, with the context's keys and values kept; or at many places of one that is known.

In: features of committed tokens, then a bonus token. Out: the K - 1 tokens that the drafter expects next. The block
runs through the same forward as in training, so what was trained is what drafts.
"""

# T committed tokens, L tokens of a text, F features, A anchors, K block slots, S = K - 1, N rows of slots, H hidden

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_exp.drafter.attention import GroupedAttention, group_anchors
from dflash_exp.drafter.layout import BlockLayout
from dflash_exp.drafter.model import Context, Drafter

HEAD_LOGITS = 2**24
"""Logits alive at once, in elements, when many drafts are read off: 110 rows of a vocabulary of 151,936."""


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
        known = self._n_committed
        positions_T = torch.arange(known, known + len(features_TF), device=features_TF.device)
        fresh = self.drafter.context(features_TF[None], positions_T)
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
        at = torch.tensor([self._n_committed])
        hidden_SH = _hidden(self.drafter, self._context, torch.tensor([bonus]), at)[0]
        return F.linear(hidden_SH, self.drafter.head_VH).argmax(-1)


@torch.no_grad()
def drafts_at(
    drafter: Drafter, features_TF: Tensor, tokens_L: Tensor, positions_A: Tensor, slots_per_pass: int
) -> Tensor:
    """What a session would propose after each of the tokens at `positions_A` (A >= 1); int64 [A, K - 1].

    tokens and positions (int64, ascending) lie on the CPU; features are those of the text's first T tokens, as many as
    the last position at least. `slots_per_pass` and `HEAD_LOGITS` bound the memory, and change rounding at most.
    Raises ValueError where features are too few.
    """
    if int(positions_A[-1]) > len(features_TF):
        raise ValueError(
            f"a draft at position {int(positions_A[-1])} needs the features of every token before it, "
            f"got {len(features_TF)}; hand in more features or leave out the position"
        )
    size = drafter.shape.block_size
    context = drafter.context(features_TF[None])
    n_rows = max(1, HEAD_LOGITS // len(drafter.head_VH))
    drafted = []
    for some_A in positions_A.split(max(1, slots_per_pass // size)):
        hidden_NH = _hidden(drafter, context, tokens_L[some_A], some_A).flatten(0, 1)
        drafted += [F.linear(rows_NH, drafter.head_VH).argmax(-1) for rows_NH in hidden_NH.split(n_rows)]
    return torch.cat(drafted).view(-1, size - 1)


def _hidden(drafter: Drafter, context: Context, token_A: Tensor, position_A: Tensor) -> Tensor:
    """Hidden states of the blocks that follow some tokens of one text, [A, S, H]; in: int64, on the CPU."""
    device = drafter.fc.weight.device
    groups = group_anchors(torch.tensor([len(position_A)]), position_A, drafter.shape.n_kv_heads, device)
    return drafter(context, BlockLayout(token_A.to(device), position_A.to(device), GroupedAttention(groups)))
