"""Block attention: every block sees the context strictly before its anchor, and itself, in one softmax.

In: queries, keys and values of the blocks, keys and values of the context. Out: one vector a query. The anchors of a
sequence, sorted, go in groups of 12; a group is plain matmuls over its context prefix, and its own blocks' scores are
the last K columns of the same softmax buffer. Groups of the same rank of all sequences run as one batched matmul, so
one sequence with 64 anchors takes 6 rounds, and so do forty. No score is computed between two sequences or two blocks.
The backward is written out: it keeps one probability buffer a group, and of each block with itself a copy. Paid for
that: memory of n_heads * K * sum(prefix + 2 K) per pass, empty places too, which `drafter.slots_per_pass` bounds. For
inputs in bf16 products are bf16, scores among them; the softmax and its backward are in fp32, as is the sum of a
context's gradient over its groups.
"""

# B sequences with anchors, S anchors of the one with most, T context tokens (longest), A anchors, M key/value heads,
# W those of all anchors (A * M), K block keys, Q block queries, R query heads of a key/value head, Y its query rows
# (Q * R), E head dim, P places; of a group: b sequences, G anchors each, p places (b * M * G), n = b * M, r = G * Y,
# C columns (the context prefix, then K), c columns that not all anchors see

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
    """Of each sequence, empty places too."""
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

    def rows(self, x_pYx: Tensor) -> Tensor:
        """[p, Y, x] -> [b * M, G * Y, x], a view: one product over a head's context serves the whole group."""
        return x_pYx.view(-1, self.n_anchors * x_pYx.shape[1], x_pYx.shape[2])

    def context(self, x_BMTE: Tensor, n_columns: int) -> Tensor:
        """The first columns of the group's context, [b * M, n_columns, E], or as many as there are."""
        seen = x_BMTE[:, :, :n_columns]
        return (seen if self.sequences_b is None else seen[self.sequences_b]).flatten(0, 1)


@dataclass(frozen=True)
class Groups:
    """The blocks of a pass, group after group: a group's are neighbours, in the order sequence, head, anchor.

    A *place* is one key/value head of one anchor, or empty, where a sequence has fewer anchors than its group.
    """

    groups: list[Group]
    place_W: Tensor
    """int64, of each anchor's heads, anchor after anchor. Empty places are filled with zeros, which add nothing to a
    gradient, and nothing is taken out of them."""
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
    q_AMYE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor, groups: Groups
) -> Tensor:
    """Attention of every block over its context and itself; Y folds the block's queries and the heads of a kv head.

    q [A, M, Y, E], scaled by 1 / sqrt(E); k, v of the block [A, M, K, E]; k, v of the context [B, M, T, E], which must
    be contiguous, or every group copies what it sees. Returns [A, M, Y, E].
    """
    return _BlockAttention.apply(q_AMYE, k_AMKE, v_AMKE, k_BMTE, v_BMTE, groups)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class GroupedAttention:
    """Attention of the blocks of one pass: `layout.Attend` for a rectangle of contexts."""

    groups: Groups

    def __call__(self, q_AMQRE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor) -> Tensor:
        """[A, M, Q, R, E]."""
        q_AMYE = q_AMQRE.flatten(2, 3)
        return block_attention(q_AMYE, k_AMKE, v_AMKE, k_BMTE, v_BMTE, self.groups).view(q_AMQRE.shape)


class _BlockAttention(torch.autograd.Function):
    """Forward and backward of `block_attention`. Products of a block with itself are one batched matmul for all places,
    which takes a sixth less than one a group; they are copied into and out of the groups' buffers of scores."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, k_ctx: Tensor, v_ctx: Tensor, groups: Groups
    ) -> Tensor:
        q_PYE, k_PKE, v_PKE = (_placed(x, groups) for x in (q, k, v))
        own_PYK, out_PYE = torch.bmm(q_PYE, k_PKE.transpose(1, 2)), torch.empty_like(q_PYE)
        parts = groups.each(q_PYE, own_PYK, out_PYE)
        weights = [_attend(group, q_pYE, own_pYK, out_pYE, k_ctx, v_ctx) for group, q_pYE, own_pYK, out_pYE in parts]
        out_PYE.baddbmm_(own_PYK, v_PKE)
        ctx.save_for_backward(q_PYE, k_PKE, v_PKE, own_PYK, out_PYE, k_ctx, v_ctx, *weights)
        ctx.groups, ctx.n_kv_heads = groups, q.shape[1]  # type: ignore[attr-defined]
        return _taken(out_PYE, groups, q.shape[1])

    @staticmethod
    def backward(ctx: FunctionCtx, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q_PYE, k_PKE, v_PKE, own_PYK, out_PYE, k_ctx, v_ctx, *weights = ctx.saved_tensors  # type: ignore[attr-defined]
        groups: Groups = ctx.groups  # type: ignore[attr-defined]
        d_out_PYE = _placed(d_out, groups)
        dv_PKE = torch.bmm(own_PYK.transpose(1, 2), d_out_PYE)
        # The softmax's backward needs sum(p * dp) a row, which is sum(out * d_out): no pass over the scores.
        delta_PY1 = out_PYE.to(_wide(out_PYE)).mul(d_out_PYE).sum(-1, keepdim=True)
        d_own_PYK, dq_PYE = torch.bmm(d_out_PYE, v_PKE.transpose(1, 2)), torch.empty_like(q_PYE)
        into = [torch.zeros_like(x, dtype=_wide(x)) for x in (k_ctx, v_ctx)]
        parts = groups.each(q_PYE, d_out_PYE, delta_PY1, d_own_PYK, dq_PYE)
        for p_pYC, (group, *of_group) in zip(weights, parts, strict=True):
            _attend_backward(group, p_pYC, of_group, (k_ctx, v_ctx), into)
        dk_PKE = torch.bmm(d_own_PYK.transpose(1, 2), q_PYE)
        dq_PYE.baddbmm_(d_own_PYK, k_PKE)
        d_blocks = (_taken(x, groups, ctx.n_kv_heads) for x in (dq_PYE, dk_PKE, dv_PKE))  # type: ignore[attr-defined]
        return *d_blocks, *into, None


def _attend(group: Group, q_pYE: Tensor, own_pYK: Tensor, out_pYE: Tensor, k_ctx: Tensor, v_ctx: Tensor) -> Tensor:
    """The group's probabilities [p, Y, C]. Reads the own block's scores and writes their probabilities over them;
    writes what the context gives to the output."""
    scores_pYC = _scores(group, q_pYE, own_pYK, k_ctx)
    scores_bMGYC = scores_pYC.unflatten(0, (group.n_sequences, -1, group.n_anchors))
    scores_bMGYC[..., group.first : group.prefix].add_(group.bias_bGc)
    p_pYC = torch.softmax(scores_pYC, dim=-1).to(q_pYE.dtype)
    own_pYK.copy_(p_pYC[..., group.prefix :])
    _set_product(group.rows(out_pYE), group.rows(p_pYC)[..., : group.prefix], group.context(v_ctx, group.prefix))
    return p_pYC


def _attend_backward(
    group: Group, p_pYC: Tensor, blocks: list[Tensor], context: tuple[Tensor, Tensor], into: list[Tensor]
) -> None:
    """Reads in d_own the gradient of the own block's probabilities, and writes that of its scores over it; writes the
    context's part of dq; adds to the gradients of the context."""
    q_pYE, d_out_pYE, delta_pY1, d_own_pYK, dq_pYE = blocks
    (k_ctx, v_ctx), (dk_ctx, dv_ctx) = context, into
    ds_pYC = _scores(group, d_out_pYE, d_own_pYK, v_ctx).sub_(delta_pY1).mul_(p_pYC).to(q_pYE.dtype)
    d_own_pYK.copy_(ds_pYC[..., group.prefix :])
    ds_nrc, p_nrc = (group.rows(x)[..., : group.prefix] for x in (ds_pYC, p_pYC))
    _set_product(group.rows(dq_pYE), ds_nrc, group.context(k_ctx, group.prefix))
    _add_to_context(group, dk_ctx, ds_nrc.transpose(1, 2), group.rows(q_pYE))
    _add_to_context(group, dv_ctx, p_nrc.transpose(1, 2), group.rows(d_out_pYE))


def _scores(group: Group, x_pYE: Tensor, own_pYK: Tensor, y_BMTE: Tensor) -> Tensor:
    """x y^T over the context prefix, then the own block's, [p, Y, C], in fp32 at least."""
    columns = group.prefix + own_pYK.shape[2]
    scores_pYC = x_pYE.new_empty(*own_pYK.shape[:2], columns, dtype=_wide(x_pYE))
    # Columns to be written over are filled, too, where there is context for them: a whole buffer takes a third less.
    context_ncE = group.context(y_BMTE, columns)
    into_nrc = group.rows(scores_pYC)[..., : context_ncE.shape[1]]
    _set_product(into_nrc, group.rows(x_pYE), context_ncE.transpose(1, 2))
    scores_pYC[..., group.prefix :] = own_pYK
    return scores_pYC


def _wide(x: Tensor) -> torch.dtype:
    """What sums over many of its numbers are kept in."""
    return torch.promote_types(x.dtype, torch.float32)


def _placed(x_AMxE: Tensor, groups: Groups) -> Tensor:
    """The blocks in the groups' order, [P, x, E], a copy."""
    rows = x_AMxE.flatten(0, 1)
    return rows.new_zeros(sum(groups.sizes), *rows.shape[1:]).index_copy_(0, groups.place_W, rows)


def _taken(x_PxE: Tensor, groups: Groups, n_kv_heads: int) -> Tensor:
    """The reverse of `_placed`."""
    return x_PxE.index_select(0, groups.place_W).unflatten(0, (-1, n_kv_heads))


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
