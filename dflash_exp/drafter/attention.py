"""Block attention: every block sees the context strictly before its anchor, and itself, in one softmax.

In: queries, keys and values of the blocks, keys and values of the context. Out: one vector a query. The anchors of a
sequence, sorted, go in groups of 12; a group is plain matmuls over its context prefix, and its own blocks' scores are
the last K columns of the same softmax buffer. Groups of the same rank of all sequences run as one batched matmul, so
one sequence with 64 anchors takes 6 rounds, and so do forty. No score is computed between two sequences or two blocks.
The backward is written out: it keeps one probability buffer a group and no copies of it. Paid for that: memory of
n_heads * K * sum(prefix) per pass, which `drafter.slots_per_pass` bounds. For inputs in bf16 the scores, the softmax
and its backward are in fp32, as is the sum of a context's gradient over its groups; the products are bf16.
"""

# B sequences with anchors, T context tokens (longest), A anchors, K block keys, Q block queries, N query heads, M
# key/value heads, R query rows of a key/value head (Q x its query heads), E head dim; P places of blocks, see `Groups`;
# of a group: b sequences, G anchors each, p places (b * M * G), C columns: context prefix + K

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

GROUP_ANCHORS = 12
"""Anchors of a group. ms of two threads, forward and backward of a layer at 8, 12, 16: 1x1024 with 64 anchors x 8 8.1,
7.3, 8.2 (larger groups have more masked keys, smaller ones more small operations); 8x512 with 64 each 30.4, 32.4, 40.1;
1x4096 with 256 x 16 242, 239, 268."""


@dataclass(frozen=True)
class Group:
    """Up to 12 neighbouring anchors of each of some sequences, and the context they share."""

    sequences_b: Tensor | None
    """int64, rows of the context; None: all of them, in order."""
    n_anchors: int
    """Of each sequence; where one has fewer, places are left empty."""
    first: int
    """Context columns before this one are seen by every anchor of the group."""
    prefix: int
    """Context columns at and after this one are seen by none."""
    bias_bGc: Tensor
    """float32 [b, 1, G, 1, prefix - first], -inf where the column is not before the anchor, else 0: to add it takes a
    seventh of the time of masked_fill_."""

    @property
    def n_sequences(self) -> int:
        return len(self.bias_bGc)

    def rows(self, x_pRx: Tensor) -> Tensor:
        """[p, R, x] -> [b * M, G * R, x], a view: one product over a head's context serves the whole group."""
        return x_pRx.view(-1, self.n_anchors * x_pRx.shape[1], x_pRx.shape[2])

    def context(self, x_BMTE: Tensor, n_columns: int) -> Tensor:
        """The first columns of the group's context, [b * M, n_columns, E], or as many as there are."""
        seen = x_BMTE[:, :, :n_columns]
        return (seen if self.sequences_b is None else seen[self.sequences_b]).flatten(0, 1)


@dataclass(frozen=True)
class Groups:
    """The blocks of a pass, group after group: a group's are neighbours, in the order sequence, head, anchor."""

    groups: list[Group]
    place_AM: Tensor
    """int64, where each block's key/value heads lie in that order; other places are empty: zeros, nobody reads them."""
    sizes: list[int]
    """Places of each group."""

    def each(self, *all_Px: Tensor) -> Iterator[tuple[Any, ...]]:
        """Each group, and what these hold at its places: views."""
        return zip(self.groups, *(x_Px.split(self.sizes) for x_Px in all_Px), strict=True)


def group_anchors(counts_B: Tensor, positions_A: Tensor, n_kv_heads: int, device: torch.device) -> Groups:
    """Cut the anchors of each sequence into groups of 12; those of equal rank make one `Group`.

    counts_B: anchors of each sequence, int64 on the CPU. positions_A: positions, ascending within a sequence, on the
    CPU. The index tensors land on `device`.
    """
    counts, positions = counts_B.numpy(), positions_A.numpy()
    starts, place_S = np.cumsum(counts) - counts, np.arange(counts.max())
    own_BS = place_S < counts[:, None]
    at_BS = positions[starts[:, None] + np.minimum(place_S, counts[:, None] - 1)]
    place_BSM = np.empty((*own_BS.shape, n_kv_heads), dtype=np.int64)
    groups: list[Group] = []
    sizes: list[int] = []
    for low in range(0, len(place_S), GROUP_ANCHORS):
        sequences_b = np.flatnonzero(counts > low)
        at_bG = at_BS[sequences_b, low : low + GROUP_ANCHORS]
        everyone = len(sequences_b) == len(counts)
        groups.append(_group(None if everyone else torch.from_numpy(sequences_b).to(device), at_bG, device))
        places_bMG = np.arange(at_bG.size * n_kv_heads).reshape(len(at_bG), n_kv_heads, -1) + sum(sizes)
        place_BSM[sequences_b, low : low + GROUP_ANCHORS] = places_bMG.transpose(0, 2, 1)
        sizes.append(places_bMG.size)
    return Groups(groups, torch.from_numpy(place_BSM[own_BS].ravel()).to(device), sizes)


def _group(sequences_b: Tensor | None, at_bG: np.ndarray, device: torch.device) -> Group:
    """at_bG: the anchors' positions; an empty place has that of its sequence's last anchor."""
    first, prefix = int(at_bG.min()), int(at_bG.max())
    unseen_bGc = np.arange(first, prefix) >= at_bG[:, :, None]
    bias_bGc = np.where(unseen_bGc, np.float32(-math.inf), np.float32(0))
    return Group(sequences_b, at_bG.shape[1], first, prefix, torch.from_numpy(bias_bGc[:, None, :, None, :]).to(device))


def block_attention(
    q_AMRE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor, groups: Groups
) -> Tensor:
    """Attention of every block over its context and itself; R folds the block's queries and the heads of a kv head.

    q [A, M, R, E], scaled by 1 / sqrt(E); k, v of the block [A, M, K, E]; k, v of the context [B, M, T, E]; all
    contiguous. Returns [A, M, R, E].
    """
    return _BlockAttention.apply(q_AMRE, k_AMKE, v_AMKE, k_BMTE, v_BMTE, groups)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class GroupedAttention:
    """Attention of the blocks of one pass: `layout.Attend` for a rectangle of contexts."""

    groups: Groups

    def __call__(self, q_AMQRE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor) -> Tensor:
        """[A, M, Q, R, E]."""
        q_AMRE = q_AMQRE.flatten(2, 3)
        return block_attention(q_AMRE, k_AMKE, v_AMKE, k_BMTE, v_BMTE, self.groups).view(q_AMQRE.shape)


class _BlockAttention(torch.autograd.Function):
    """Forward and backward of `block_attention`. Products of a block with itself are one batched matmul for all places,
    which takes a sixth less than one a group; they are copied into and out of the groups' buffers of scores."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, k_ctx: Tensor, v_ctx: Tensor, groups: Groups
    ) -> Tensor:
        q_PRE, k_PKE, v_PKE = (_placed(x, groups) for x in (q, k, v))
        own_PRK, out_PRE = torch.bmm(q_PRE, k_PKE.transpose(1, 2)), torch.empty_like(q_PRE)
        parts = groups.each(q_PRE, own_PRK, out_PRE)
        weights = [_attend(group, q_pRE, own_pRK, out_pRE, k_ctx, v_ctx) for group, q_pRE, own_pRK, out_pRE in parts]
        out_PRE.baddbmm_(own_PRK, v_PKE)
        ctx.save_for_backward(q_PRE, k_PKE, v_PKE, own_PRK, out_PRE, k_ctx, v_ctx, *weights)
        ctx.groups, ctx.n_kv_heads = groups, q.shape[1]  # type: ignore[attr-defined]
        return _taken(out_PRE, groups, q.shape[1])

    @staticmethod
    def backward(ctx: FunctionCtx, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q_PRE, k_PKE, v_PKE, own_PRK, out_PRE, k_ctx, v_ctx, *weights = ctx.saved_tensors  # type: ignore[attr-defined]
        groups: Groups = ctx.groups  # type: ignore[attr-defined]
        d_out_PRE = _placed(d_out.contiguous(), groups)
        dv_PKE = torch.bmm(own_PRK.transpose(1, 2), d_out_PRE)
        # The softmax's backward needs sum(p * dp) a row, which is sum(out * d_out): no pass over the scores.
        delta_PR1 = out_PRE.to(_wide(out_PRE)).mul(d_out_PRE).sum(-1, keepdim=True)
        d_own_PRK, dq_PRE = torch.bmm(d_out_PRE, v_PKE.transpose(1, 2)), torch.empty_like(q_PRE)
        into = [torch.zeros_like(x, dtype=_wide(x)) for x in (k_ctx, v_ctx)]
        parts = groups.each(q_PRE, d_out_PRE, delta_PR1, d_own_PRK, dq_PRE)
        for p_pRC, (group, *of_group) in zip(weights, parts, strict=True):
            _attend_backward(group, p_pRC, of_group, (k_ctx, v_ctx), into)
        dk_PKE = torch.bmm(d_own_PRK.transpose(1, 2), q_PRE)
        dq_PRE.baddbmm_(d_own_PRK, k_PKE)
        d_blocks = (_taken(x, groups, ctx.n_kv_heads) for x in (dq_PRE, dk_PKE, dv_PKE))  # type: ignore[attr-defined]
        return *d_blocks, *into, None


def _attend(group: Group, q_pRE: Tensor, own_pRK: Tensor, out_pRE: Tensor, k_ctx: Tensor, v_ctx: Tensor) -> Tensor:
    """The group's probabilities [p, R, C]. Reads the own block's scores and writes their probabilities over them;
    writes what the context gives to the output."""
    scores_pRC = _scores(group, q_pRE, own_pRK, k_ctx)
    by_sequence = scores_pRC.unflatten(0, (group.n_sequences, -1, group.n_anchors))
    by_sequence[..., group.first : group.prefix].add_(group.bias_bGc)
    p_pRC = torch.softmax(scores_pRC, dim=-1).to(q_pRE.dtype)
    own_pRK.copy_(p_pRC[..., group.prefix :])
    _set_product(group.rows(out_pRE), group.rows(p_pRC)[..., : group.prefix], group.context(v_ctx, group.prefix))
    return p_pRC


def _attend_backward(
    group: Group, p_pRC: Tensor, blocks: list[Tensor], context: tuple[Tensor, Tensor], into: list[Tensor]
) -> None:
    """From the output's gradient those of the own block's scores (whose products are read, and written over), of what
    the queries had of the context, and, added, of the context."""
    q_pRE, d_out_pRE, delta_pR1, d_own_pRK, dq_pRE = blocks
    (k_ctx, v_ctx), (dk_ctx, dv_ctx) = context, into
    ds_pRC = _scores(group, d_out_pRE, d_own_pRK, v_ctx).sub_(delta_pR1).mul_(p_pRC).to(q_pRE.dtype)
    d_own_pRK.copy_(ds_pRC[..., group.prefix :])
    ds_nrc, p_nrc = (group.rows(x)[..., : group.prefix] for x in (ds_pRC, p_pRC))
    _set_product(group.rows(dq_pRE), ds_nrc, group.context(k_ctx, group.prefix))
    _add_to_context(group, dk_ctx, ds_nrc.transpose(1, 2), group.rows(q_pRE))
    _add_to_context(group, dv_ctx, p_nrc.transpose(1, 2), group.rows(d_out_pRE))


def _scores(group: Group, x_pRE: Tensor, own_pRK: Tensor, y_BMTE: Tensor) -> Tensor:
    """x y^T over the context prefix, then the own block's, [p, R, C], in fp32 at least."""
    columns = group.prefix + own_pRK.shape[2]
    scores_pRC = x_pRE.new_empty(*own_pRK.shape[:2], columns, dtype=_wide(x_pRE))
    # Columns to be written over are filled, too, where there is context for them: a whole buffer takes a third less.
    context_ncE = group.context(y_BMTE, columns)
    into_nrc = group.rows(scores_pRC)[..., : context_ncE.shape[1]]
    _set_product(into_nrc, group.rows(x_pRE), context_ncE.transpose(1, 2))
    scores_pRC[..., group.prefix :] = own_pRK
    return scores_pRC


def _wide(x: Tensor) -> torch.dtype:
    """What sums over many of its numbers are kept in."""
    return torch.promote_types(x.dtype, torch.float32)


def _placed(x_AMxE: Tensor, groups: Groups) -> Tensor:
    """The blocks in the groups' order, [P, x, E], a copy."""
    rows = x_AMxE.flatten(0, 1)
    return rows.new_zeros(sum(groups.sizes), *rows.shape[1:]).index_copy_(0, groups.place_AM, rows)


def _taken(x_PxE: Tensor, groups: Groups, n_kv_heads: int) -> Tensor:
    """The reverse of `_placed`."""
    return x_PxE.index_select(0, groups.place_AM).unflatten(0, (-1, n_kv_heads))


def _add_to_context(group: Group, into_BMTE: Tensor, a_ncr: Tensor, b_nrE: Tensor) -> None:
    """Add a b to what the group sees of the context."""
    product = torch.bmm(a_ncr, b_nrE).to(into_BMTE.dtype).unflatten(0, (group.n_sequences, -1))
    seen = into_BMTE[:, :, : group.prefix]
    if group.sequences_b is None:
        seen.add_(product)
    else:
        seen.index_add_(0, group.sequences_b, product)


def _set_product(into_nxy: Tensor, a_nxz: Tensor, b_nzy: Tensor) -> None:
    """into = a b, in place where the formats agree: a product beside it, copied, takes half as long again."""
    if a_nxz.dtype == into_nxy.dtype:
        torch.bmm(a_nxz, b_nzy, out=into_nxy)
    else:
        into_nxy.copy_(torch.bmm(a_nxz, b_nzy))
