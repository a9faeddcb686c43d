"""A drafter and a batch of made-up hidden states, of a stated size: what a step's figures are measured on.

In: a size. Out: weights, hidden states, tokens and anchors, drawn from a fixed seed, and the step that a run would take
on them. No block runs past the end of its sequence, for other implementations cannot have that.
"""

# B sequences, T padded tokens, P packed tokens, F features, A anchors, V vocabulary, H hidden

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_exp.drafter.loss import LossConfig, Reduction
from dflash_exp.drafter.model import Drafter, initialise
from dflash_exp.drafter.passes import GroupedPasses
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import BatchPlan, TargetFeatures, TokenBatch
from dflash_exp.optim import AdamW, Schedule, build_optimizer

HIDDEN, N_TARGET_LAYERS, TAPS = 192, 8, (1, 5)
"""Taps as many as the three sizes have draft layers, for one other implementation takes no other number."""
SETTINGS = AdamW(6e-4, 0.0, [0.9, 0.95], Schedule.constant, 0.0, 0.0, 1.0)
SLOTS_PER_PASS = 16_384


@dataclass(frozen=True)
class Size:
    """What a step is taken on."""

    name: str
    lengths: tuple[int, ...]
    anchors: int
    """Of each sequence."""
    block_size: int
    gamma: float
    vocabulary: int
    n_layers: int = 2


SIZES = (
    Size("1x1024, 64 anchors x 8, vocabulary 2048", (1024,), 64, 8, 4.0, 2048),
    Size("8x512 ragged, 64 anchors x 8, vocabulary 2048", tuple(range(512, 128, -48)), 64, 8, 4.0, 2048),
    Size("1x4096, 256 anchors x 16, vocabulary 32768", (4096,), 256, 16, 7.0, 32768),
)


@dataclass(frozen=True)
class Given:
    """What every step is taken with."""

    drafter: Drafter
    features: TargetFeatures
    gamma: float

    @property
    def anchors_BA(self) -> Tensor:
        """int64, ascending: every sequence has as many."""
        return self.features.batch.anchor_position_A.view(len(self.features.batch.lengths_B), -1)

    @property
    def features_BTF(self) -> Tensor:
        """Hidden states in a rectangle, zeros behind the shorter sequences."""
        parts = self.features.features_PF.split(self.features.batch.lengths_B.tolist())
        return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)


def given(size: Size) -> Given:
    """Matrices N(0, 0.02), as a run begins with; all but the first eighth of each sequence is supervised."""
    draw = torch.Generator().manual_seed(0)
    shape = DrafterShape(
        hidden_size=HIDDEN, intermediate_size=512, n_heads=4, n_kv_heads=2, head_dim=48, n_layers=size.n_layers,
        block_size=size.block_size, vocab_size=size.vocabulary, mask_token_id=size.vocabulary - 1,
        target_layer_ids=TAPS, rope_theta=10000.0, rms_norm_eps=1e-6, n_target_layers=N_TARGET_LAYERS,
    )  # fmt: skip
    embed_VH, head_VH = 0.02 * torch.randn(2, size.vocabulary, HIDDEN, generator=draw)
    drafter = Drafter(shape, embed_VH, head_VH)
    initialise(drafter, seed=0)
    batch = _batch(size, draw)
    features_PF = torch.randn(sum(size.lengths), len(TAPS) * HIDDEN, generator=draw)
    return Given(drafter, TargetFeatures(batch, features_PF), size.gamma)


def step_on(given: Given) -> DrafterStep:
    """The step as a run takes it, with its sums of accuracy, its sketch of the gradient and its clip."""
    optimizer = build_optimizer(SETTINGS, given.drafter.named_parameters())
    loss = LossConfig(Reduction.step, given.gamma)
    return DrafterStep(given.drafter, loss, optimizer, GroupedPasses(SLOTS_PER_PASS), SETTINGS.max_grad_norm)


def _batch(size: Size, draw: torch.Generator) -> TokenBatch:
    lengths_B = torch.tensor(size.lengths)
    at_T = torch.arange(max(size.lengths))
    anchors = [_anchors(length, size, draw) for length in size.lengths]
    return TokenBatch(
        plan=BatchPlan(0, 0, 0, 0, 0, np.arange(len(size.lengths))),
        tokens_BT=torch.randint(0, size.vocabulary - 1, (len(lengths_B), len(at_T)), generator=draw),
        supervised_BT=(at_T >= lengths_B[:, None] // 8) & (at_T < lengths_B[:, None]),
        lengths_B=lengths_B,
        anchor_row_A=torch.arange(len(lengths_B)).repeat_interleave(size.anchors),
        anchor_position_A=torch.cat(anchors),
    )


def _anchors(length: int, size: Size, draw: torch.Generator) -> Tensor:
    """Positions whose block is supervised and ends within the sequence, ascending."""
    prompt = length // 8
    chosen = torch.randperm(length - size.block_size - prompt, generator=draw)[: size.anchors]
    return chosen.sort().values + prompt
