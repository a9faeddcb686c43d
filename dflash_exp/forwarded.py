"""What the target forwards at once: a whole batch, or each of its sequences alone.

A batch at once is what a GPU wants. A sequence alone has the same features whatever its company: they can be kept by
sequence, for other epochs, seeds, budgets and bucket edges. A library's matrix product may round otherwise for another
number of rows: with the embedded target in fp32 on a CPU, 252 of 358 sequences were bitwise the same alone as in their
batch.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

import torch
from torch import Tensor


class Forward(StrEnum):
    """What is forwarded at once."""

    BATCH = "batch"
    SEQUENCE = "sequence"
    """Without padding; as fast on a CPU, slow on a GPU where sequences are short."""


def parts(forward: Forward, tokens_BT: Tensor, lengths_B: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """What each forward takes: padded tokens [b, t] and lengths [b], in the order of the rows."""
    if forward is Forward.BATCH:
        yield tokens_BT, lengths_B
        return
    for row, length in enumerate(lengths_B.tolist()):
        yield tokens_BT[row : row + 1, :length], lengths_B[row : row + 1]


def joined(features: Sequence[Tensor]) -> Tensor:
    """features_PF of all parts, in their order; of one part itself, not a copy."""
    return features[0] if len(features) == 1 else torch.cat(list(features))
