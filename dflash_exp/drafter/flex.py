"""Block attention on CUDA: flex_attention over one packed row, which skips what no block sees.

In: queries, keys and values of the blocks, keys and values of the packed context. Out: one vector a query. Keys are the
context and then the slots, so a block's context and the block itself stand in one softmax, and nothing is kept of it.
The mask is built from where each anchor's context begins and ends, by squares of 128 x 128 scores, on the device: no
score is evaluated for it and nothing waits. Whatever a batch holds, its tensors are padded to one shape, known before
the run: one compilation for training, one for measuring. The padding costs a square for every 128 slots of it, and for
context nothing but its copy.

Not `torch.nn.attention.varlen`: a sequence of keys is a run of one tensor there, so each block would need a copy of its
context (1,024 blocks over 8 documents of 2,000 tokens: 1M keys for 16,000), or two calls and a merge of softmaxes. Nor
does it run on a CPU, or in fp32.
"""

# A anchors (padded), Q squares of queries, J squares of keys, n anchors that one square of queries can meet, S slots
# (padded), C keys: context, padded, then slots; N query heads, M key/value heads, E head dim

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

SQUARE = 128
"""Side of the squares of scores that are computed or skipped whole: the kernel's own."""
LEAST_HEAD_DIM = 16
"""Of the kernel."""

Flex = Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]
"""q [1, N, S, E], scaled already, k and v [1, M, C, E], what sees what -> [1, N, S, E]; it must not scale again."""


@dataclass(frozen=True)
class PaddedShape:
    """What every pass is padded to."""

    context: int
    """Tokens, a multiple of 128."""
    slots: int
    """A multiple of 128."""
    block_size: int

    @property
    def anchors(self) -> int:
        """Blocks that begin within the slots."""
        return -(-self.slots // self.block_size)


def padded_shape(most_tokens: int, most_anchors: int, block_size: int) -> PaddedShape:
    """The shape that holds so many tokens of context and so many blocks."""
    context, slots = (-(-most // SQUARE) * SQUARE for most in (most_tokens, most_anchors * block_size))
    return PaddedShape(context, slots, block_size)


def block_mask(begin_A: Tensor, end_A: Tensor, shape: PaddedShape) -> BlockMask:
    """Which keys the slots see: the context from begin to end - 1 of their anchor, and their own block.

    int32 [shape.anchors], both 0 where there is no anchor. Squares are full where every slot sees every key.
    """
    context, size = shape.context, shape.block_size

    def seen(batch: Tensor, head: Tensor, slot: Tensor, key: Tensor) -> Tensor:
        anchor = slot // size
        own = (key >= context) & ((key - context) // size == anchor)
        return ((key >= begin_A[anchor]) & (key < end_A[anchor])) | own

    some_QJ, whole_QJ = _squares(begin_A, end_A, shape)
    lengths = (shape.slots, context + shape.slots)
    return BlockMask.from_kv_blocks(
        *_listed(some_QJ & ~whole_QJ), *_listed(whole_QJ), BLOCK_SIZE=SQUARE, mask_mod=seen, seq_lengths=lengths
    )


def _squares(begin_A: Tensor, end_A: Tensor, shape: PaddedShape) -> tuple[Tensor, Tensor]:
    """Squares of which something is seen, and of which all is; bool [Q, J]. A block's own slots never count as all."""
    size, at = shape.block_size, begin_A.device
    slot_Q = torch.arange(0, shape.slots, SQUARE, device=at)
    first_Q, last_Q = slot_Q // size, (slot_Q + SQUARE - 1) // size
    near_n = torch.arange((SQUARE + size - 2) // size + 1, device=at)
    met_Qn = torch.minimum(first_Q[:, None] + near_n, last_Q[:, None])
    begin_Qn1, end_Qn1 = begin_A[met_Qn][..., None], end_A[met_Qn][..., None]
    left_J = torch.arange(0, shape.context, SQUARE, device=at)
    some_QnJ = (begin_Qn1 < left_J + SQUARE) & (end_Qn1 > left_J) & (begin_Qn1 < end_Qn1)
    whole_QnJ = (begin_Qn1 <= left_J) & (end_Qn1 >= left_J + SQUARE)
    own_QJ = (slot_Q < (last_Q[:, None] + 1) * size) & (slot_Q + SQUARE > first_Q[:, None] * size)
    return torch.cat([some_QnJ.any(1), own_QJ], 1), torch.cat([whole_QnJ.all(1), torch.zeros_like(own_QJ)], 1)


def _listed(squares_QJ: Tensor) -> tuple[Tensor, Tensor]:
    """How many squares of a row there are, and which, as `BlockMask` takes them: int32 [1, 1, Q] and [1, 1, Q, J]."""
    order_QJ = torch.argsort(squares_QJ.to(torch.int8), dim=1, descending=True, stable=True)
    return squares_QJ.sum(1).to(torch.int32)[None, None], order_QJ.to(torch.int32)[None, None]


@dataclass(frozen=True)
class FlexAttention:
    """Attention of the blocks of one pass: `layout.Attend` for a packed context."""

    mask: BlockMask
    shape: PaddedShape
    flex: Flex

    def __call__(self, q_AMQRE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor) -> Tensor:
        """[A, M, Q, R, E]; B is 1, T the packed tokens. Queries are the last Q of K slots, the others padding, too."""
        n_anchors, n_kv_heads, n_queries, n_repeats, head_dim = q_AMQRE.shape
        size = self.shape.block_size
        q_AMKRE = F.pad(q_AMQRE, (0, 0, 0, 0, size - n_queries, 0))
        q_1NsE = q_AMKRE.permute(1, 3, 0, 2, 4).reshape(1, n_kv_heads * n_repeats, n_anchors * size, head_dim)
        k_1MCE, v_1MCE = self._keys(k_BMTE, k_AMKE), self._keys(v_BMTE, v_AMKE)
        out_1NSE = self.flex(_padded(q_1NsE, self.shape.slots), k_1MCE, v_1MCE, self.mask)
        out_MRAKE = out_1NSE[0, :, : n_anchors * size].view(n_kv_heads, n_repeats, n_anchors, size, head_dim)
        return out_MRAKE.permute(2, 0, 3, 1, 4)[:, :, size - n_queries :]

    def _keys(self, context_1MTE: Tensor, blocks_AMKE: Tensor) -> Tensor:
        """The padded context, then the padded slots: [1, M, C, E]."""
        slots_1MsE = blocks_AMKE.transpose(0, 1).flatten(1, 2)[None]
        whole = torch.cat([_padded(context_1MTE, self.shape.context), _padded(slots_1MsE, self.shape.slots)], 2)
        return whole.contiguous()


def _padded(x_1xnE: Tensor, length: int) -> Tensor:
    """Zeros behind the rows, up to `length` of them; contiguous, for strides are part of what is compiled."""
    return F.pad(x_1xnE, (0, 0, 0, length - x_1xnE.shape[2])).contiguous()


def compiled_flex(backend: str = "inductor") -> Flex:
    """The kernel, compiled at the first call of each kind; whatever cannot be compiled raises, rather than fall back to
    a dense matrix of scores."""
    # isolated, which torch's type hints leave out: runs of one process must not use up one another's compilations
    attend: Callable[..., Any] = flex_attention
    options: dict[str, Any] = {"dynamic": False, "fullgraph": True, "isolate_recompiles": True, "backend": backend}
    compiled = torch.compile(attend, **options)

    def flex(q_1NSE: Tensor, k_1MCE: Tensor, v_1MCE: Tensor, mask: BlockMask) -> Tensor:
        return compiled(q_1NSE, k_1MCE, v_1MCE, block_mask=mask, scale=1.0, enable_gqa=True)

    return flex
