"""A plan's batch becomes tensors: right-padded tokens, masks, and the anchors of each sequence.

In: a `BatchPlan` and the store's rows. Out: a `TokenBatch` on the CPU. Which positions are anchors is decided by the
function handed in, from the sequence alone, never from its company.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from dflash_exp.data.store import Conversations
from dflash_exp.messages import BatchPlan, TokenBatch

ChooseAnchors = Callable[[int, int, np.ndarray], np.ndarray]
"""(epoch, sequence row, supervised mask) -> ascending anchor positions."""


class Collator:
    """The prefetch stage: reads rows and builds a batch."""

    def __init__(self, conversations: Conversations, choose_anchors: ChooseAnchors) -> None:
        self._conversations = conversations
        self._choose_anchors = choose_anchors

    def __call__(self, plan: BatchPlan) -> TokenBatch:
        tokens = [self._conversations.tokens(row).astype(np.int64) for row in plan.sequence_rows]
        supervised = [np.array(self._conversations.supervised(row)) for row in plan.sequence_rows]
        anchors = [
            self._choose_anchors(plan.epoch, int(row), mask)
            for row, mask in zip(plan.sequence_rows, supervised, strict=True)
        ]
        return TokenBatch(
            plan=plan,
            tokens_BT=pad_sequence([torch.from_numpy(t) for t in tokens], batch_first=True),
            supervised_BT=pad_sequence([torch.from_numpy(s) for s in supervised], batch_first=True),
            lengths_B=torch.tensor([len(t) for t in tokens]),
            anchor_row_A=torch.from_numpy(np.repeat(np.arange(len(anchors)), [len(a) for a in anchors])),
            anchor_position_A=torch.from_numpy(np.concatenate(anchors).astype(np.int64)),
        )
