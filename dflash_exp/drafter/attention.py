"""Block attention: every block sees the context strictly before its anchor, and itself, in one softmax.

In: queries, keys and values of the blocks, keys and values of the context. Out: one vector a query. The anchors of a
sequence, sorted, go in groups of 12; a group is plain matmuls over its context prefix, and its own blocks' scores are
the last K columns of the same softmax buffer. Groups of the same rank of all sequences run as one batched matmul, so
one sequence with 64 anchors takes 6 rounds, and so do forty. No score is computed between two sequences or two blocks.
The backward is written out: it keeps one probability buffer a group and no copies of it. Paid for that: memory of
n_heads * K * sum(prefix) per pass, which `drafter.slots_per_pass` bounds. For inputs in bf16 the scores, the softmax
and its backward are in fp32, as is the sum of a context's gradient over its groups; the products are bf16.
"""

# B sequences with anchors, T context tokens (longest), A anchors, G anchors of a group, K block keys, Q block queries,
# N query heads, M key/value heads, R query heads of a key/value head, E head dim, C columns: context prefix + K

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

GROUP_ANCHORS = 12
"""Anchors of a group. ms of one thread, forward and backward of a layer at 8, 12, 16: 1x1024 with 64 anchors x 8 14.3,
13.4, 15.5 (larger groups have more masked keys); 8x512 with 64 each 61.7, 65.4, 73.0; 1x4096 with 256 x 16 430, 414,
437 (fewer, larger matmuls)."""


@dataclass(frozen=True)
class Group:
    """Up to 12 neighbouring anchors of each of some sequences, and the context they share.

    A *place* is one of b * M * G; a sequence with fewer anchors repeats its last one, which is computed and dropped.
    """

    sequences_b: Tensor | None
    """int64, rows of the context; None: all of them, in order."""
    rows_bMG: Tensor
    """int64, row of each place in a tensor of A * M rows."""
    own_bG: Tensor | None
    """bool [b, 1, G, 1, 1], False where an anchor is a repeated one; None: none is."""
    kept: Tensor | None
    """int64, the places (flattened b, M, G) that are not repeated; None: all."""
    first: int
    """Context columns before this one are seen by every anchor of the group."""
    prefix: int
    """Context columns at and after this one are seen by none."""
    bias_bGc: Tensor
    """float32 [b, 1, G, 1, prefix - first], -inf where the column is not before the anchor, else 0: to add it takes a
    seventh of the time of masked_fill_."""


def group_anchors(counts_B: Tensor, positions_A: Tensor, n_kv_heads: int, device: torch.device) -> list[Group]:
    """Cut the anchors of each sequence into groups of 12; those of equal rank make one `Group`.

    counts_B: anchors of each sequence, int64 on the CPU. positions_A: positions, ascending within a sequence, on the
    CPU. The groups' index tensors land on `device`.
    """
    starts_B = torch.cumsum(counts_B, 0) - counts_B
    groups: list[Group] = []
    for low in range(0, int(counts_B.max()), GROUP_ANCHORS):
        sequences_b = torch.nonzero(counts_B > low).flatten()
        left_b = (counts_B[sequences_b] - low).clamp(max=GROUP_ANCHORS)
        place_G = torch.arange(int(left_b.max()))
        own_bG = place_G < left_b[:, None]
        anchors_bG = starts_B[sequences_b, None] + low + torch.minimum(place_G, left_b[:, None] - 1)
        everyone = len(sequences_b) == len(counts_B)
        group = _group(anchors_bG, own_bG, positions_A[anchors_bG], n_kv_heads, device)
        groups.append(group if everyone else replace(group, sequences_b=sequences_b.to(device)))
    return groups


def _group(anchors_bG: Tensor, own_bG: Tensor, at_bG: Tensor, n_kv_heads: int, device: torch.device) -> Group:
    """The group of every sequence; at_bG: the anchors' positions."""
    first, prefix = int(at_bG.min()), int(at_bG.max())
    bias_bGc = torch.zeros(*at_bG.shape, prefix - first)
    bias_bGc.masked_fill_(torch.arange(first, prefix) >= at_bG[:, :, None], -math.inf)
    rows_bMG = anchors_bG[:, None, :] * n_kv_heads + torch.arange(n_kv_heads)[:, None]
    full = bool(own_bG.all())
    kept = torch.nonzero(own_bG[:, None].expand_as(rows_bMG).flatten()).flatten()
    return Group(
        sequences_b=None,
        rows_bMG=rows_bMG.to(device),
        own_bG=None if full else own_bG[:, None, :, None, None].to(device),
        kept=None if full else kept.to(device),
        first=first,
        prefix=prefix,
        bias_bGc=bias_bGc[:, None, :, None, :].to(device),
    )


def block_attention(
    q_AMRE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor, groups: list[Group]
) -> Tensor:
    """Attention of every block over its context and itself; R folds the block's queries and the heads of a kv head.

    q [A, M, R, E]; k, v of the block [A, M, K, E]; k, v of the context [B, M, T, E]; all contiguous. Returns
    [A, M, R, E].
    """
    return _BlockAttention.apply(q_AMRE, k_AMKE, v_AMKE, k_BMTE, v_BMTE, groups)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class GroupedAttention:
    """Attention of the blocks of one pass: `layout.Attend` for a rectangle of contexts."""

    groups: list[Group]

    def __call__(self, q_AMQRE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor) -> Tensor:
        """[A, M, Q, R, E]."""
        q_AMRE = q_AMQRE.flatten(2, 3)
        return block_attention(q_AMRE, k_AMKE, v_AMKE, k_BMTE, v_BMTE, self.groups).view(q_AMQRE.shape)


class _BlockAttention(torch.autograd.Function):
    """Forward and backward of `block_attention`, group by group."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, k_ctx: Tensor, v_ctx: Tensor, groups: list[Group]
    ) -> Tensor:
        out = torch.empty_like(q)
        weights = [_attend(group, q, k, v, k_ctx, v_ctx, out) for group in groups]
        ctx.save_for_backward(q, k, v, k_ctx, v_ctx, out, *weights)
        ctx.groups = groups  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved, weights = list(ctx.saved_tensors[:6]), ctx.saved_tensors[6:]  # type: ignore[attr-defined]
        q, k, v, k_ctx, v_ctx, _ = saved
        into = [torch.empty_like(x) for x in (q, k, v)] + [torch.zeros_like(x, dtype=_wide(x)) for x in (k_ctx, v_ctx)]
        for group, p in zip(ctx.groups, weights, strict=True):  # type: ignore[attr-defined]
            _attend_backward(group, p, d_out.contiguous(), saved, into)
        return *into, None


def _attend(group: Group, q: Tensor, k: Tensor, v: Tensor, k_ctx: Tensor, v_ctx: Tensor, out: Tensor) -> Tensor:
    """Write the group's rows of `out`; return the probabilities [b, M, G, R, C]."""
    prefix = group.prefix
    scores = _scores(group, _take(group, q), _take(group, k), k_ctx, 1 / math.sqrt(q.shape[-1]))
    scores[..., group.first : prefix].add_(group.bias_bGc)
    p = torch.softmax(scores, dim=-1).to(q.dtype)
    result = torch.matmul(p[..., prefix:], _take(group, v))
    _add_product(_rows(result), _rows(p)[..., :prefix], _context(group, v_ctx))
    _put(group, out, result)
    return p


def _scores(group: Group, q_bMGRE: Tensor, k_bMGKE: Tensor, k_ctx: Tensor, scale: float) -> Tensor:
    """scale q k^T over the context prefix and the own block, [b, M, G, R, C], in fp32 at least."""
    columns = group.prefix + k_bMGKE.shape[-2]
    scores = q_bMGRE.new_empty(*q_bMGRE.shape[:4], columns, dtype=_wide(q_bMGRE))
    context = _context(group, k_ctx).transpose(-1, -2)
    _set_product(_rows(scores)[..., : group.prefix], _rows(q_bMGRE), context, scale)
    own = torch.matmul(q_bMGRE, k_bMGKE.transpose(-1, -2)).to(scores.dtype)
    torch.mul(own, scale, out=scores[..., group.prefix :])
    return scores


def _attend_backward(group: Group, p: Tensor, d_out: Tensor, saved: list[Tensor], into: list[Tensor]) -> None:
    """Write the group's rows of dq, dk, dv and add to the context's; p [b, M, G, R, C] from `_attend`."""
    q, k, v, k_ctx, v_ctx, out = saved
    dq, dk, dv, dk_ctx, dv_ctx = into
    scale, prefix = 1 / math.sqrt(q.shape[-1]), group.prefix
    q_bMGRE, d_out_bMGRE = _take(group, q), _take(group, d_out)
    if group.own_bG is not None:
        d_out_bMGRE.mul_(group.own_bG)
    # The softmax's backward needs sum(p * dp) a row, which is sum(out * d_out): no pass over the scores.
    delta = _take(group, out).to(_wide(out)).mul_(d_out_bMGRE).sum(-1, keepdim=True)
    dp = _scores(group, d_out_bMGRE, _take(group, v), v_ctx, 1.0).sub_(delta).mul_(p).to(q.dtype)
    q_bMGRE.mul_(scale)
    _put(group, dv, torch.matmul(p[..., prefix:].transpose(-1, -2), d_out_bMGRE))
    _put(group, dk, torch.matmul(dp[..., prefix:].transpose(-1, -2), q_bMGRE))
    own = torch.matmul(dp[..., prefix:], _take(group, k))
    _add_product(_rows(own), _rows(dp)[..., :prefix], _context(group, k_ctx))
    _put(group, dq, own.mul_(scale))
    _add_context(group, dk_ctx, _rows(dp)[..., :prefix].transpose(-1, -2), _rows(q_bMGRE))
    _add_context(group, dv_ctx, _rows(p)[..., :prefix].transpose(-1, -2), _rows(d_out_bMGRE))


def _wide(x: Tensor) -> torch.dtype:
    """What sums over many of its numbers are kept in."""
    return torch.promote_types(x.dtype, torch.float32)


def _rows(x_bMGRx: Tensor) -> Tensor:
    """[b, M, G, R, x] -> [b, M, G * R, x], a view: one matmul over the context serves the whole group."""
    return x_bMGRx.flatten(2, 3)


def _take(group: Group, x_AMxE: Tensor) -> Tensor:
    """The group's blocks: [A, M, x, E] -> [b, M, G, x, E], a copy."""
    taken = x_AMxE.flatten(0, 1).index_select(0, group.rows_bMG.flatten())
    return taken.view(*group.rows_bMG.shape, *x_AMxE.shape[2:])


def _put(group: Group, into_AMxE: Tensor, x_bMGxE: Tensor) -> None:
    """The reverse of `_take`; an anchor has one place of its own, so nothing is added up."""
    places, rows = x_bMGxE.flatten(0, 2), group.rows_bMG.flatten()
    if group.kept is not None:
        places, rows = places[group.kept], rows[group.kept]
    into_AMxE.flatten(0, 1).index_copy_(0, rows, places)


def _context(group: Group, x_BMTE: Tensor) -> Tensor:
    """What the group sees of the context, [b, M, prefix, E]."""
    seen = x_BMTE[:, :, : group.prefix]
    return seen if group.sequences_b is None else seen[group.sequences_b]


def _add_context(group: Group, into_BMTE: Tensor, a_bMTR: Tensor, b_bMRE: Tensor) -> None:
    """Add a b to what the group sees of the context."""
    seen = into_BMTE[:, :, : group.prefix]
    if group.sequences_b is None:
        _add_product(seen, a_bMTR, b_bMRE)
    else:
        seen.index_add_(0, group.sequences_b, torch.matmul(a_bMTR, b_bMRE).to(seen.dtype))


def _set_product(into_bMxy: Tensor, a_bMxz: Tensor, b_bMzy: Tensor, scale: float) -> None:
    """into = scale a b, in one pass where the formats agree: a product beside it, copied, takes half as long again.

    Elsewhere it is copied before it is scaled, for a product scaled in a's format is rounded to it once more.
    """
    if a_bMxz.dtype == into_bMxy.dtype:
        into = into_bMxy.flatten(0, 1)
        torch.baddbmm(into, a_bMxz.flatten(0, 1), b_bMzy.flatten(0, 1), beta=0, alpha=scale, out=into)
    else:
        into_bMxy.copy_(torch.matmul(a_bMxz, b_bMzy)).mul_(scale)


def _add_product(into_bMxy: Tensor, a_bMxz: Tensor, b_bMzy: Tensor) -> None:
    """into += a b."""
    if a_bMxz.dtype == into_bMxy.dtype:
        into_bMxy.flatten(0, 1).baddbmm_(a_bMxz.flatten(0, 1), b_bMzy.flatten(0, 1))
    else:
        into_bMxy.add_(torch.matmul(a_bMxz, b_bMzy))
