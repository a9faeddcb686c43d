"""Where a step's time goes: each of its parts, forward and backward, by itself on what it was called with in a step.

In: a step and a batch. Out: calls to be timed, one a part. The parts leave out what lies between them (rotations,
copies, indices, sums): that is the whole step less their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dflash_exp.drafter.layers import Linear, Mlp, RmsNorm
from dflash_exp.drafter.layout import Anchors, Attend, BlockLayout, locate_anchors
from dflash_exp.drafter.loss import head_loss, slot_weights
from dflash_exp.drafter.model import Context, Drafter
from dflash_exp.drafter.passes import Passes
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import TargetFeatures

ATTENTION, MLP, PROJECTIONS, NORMS = "attention", "MLP", "other projections", "norms"
HEAD, OPTIMIZER, GRADIENT = "head and loss", "optimizer", "gradient's norm and sketch"

Call = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
"""A part of the forward and what it was called with."""


@dataclass
class Recorder:
    """What was called in a forward, by part."""

    calls: dict[str, list[Call]] = field(default_factory=dict)

    def note(self, part: str, do: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        """Inputs are kept as leaves that want a gradient where they wanted one."""
        leaves = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
        self.calls.setdefault(part, []).append((do, leaves))


@dataclass(frozen=True)
class RecordedAttention:
    """`layout.Attend` that notes its calls."""

    attend: Attend
    recorder: Recorder

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.recorder.note(ATTENTION, self.attend, inputs)
        return self.attend(*inputs)


@dataclass(frozen=True)
class RecordedPasses:
    """`passes.Passes` whose layouts note their attention's calls."""

    passes: Passes
    recorder: Recorder

    @property
    def slots(self) -> int:
        return self.passes.slots

    def context(self, drafter: Drafter, features: TargetFeatures, anchors: Anchors) -> Context:
        return self.passes.context(drafter, features, anchors)

    def layout(self, drafter: Drafter, anchors: Anchors, first: int, last: int) -> BlockLayout:
        layout = self.passes.layout(drafter, anchors, first, last)
        return replace(layout, attend=RecordedAttention(layout.attend, self.recorder))


def step_parts(step: DrafterStep, features: TargetFeatures) -> dict[str, Callable[[], object]]:
    """One call a part, after one accumulation that notes what each is called with. Leaves the gradient cleared."""
    with recorded(step) as recorder:
        step.accumulate(features)
    step.discard()
    parts: dict[str, Callable[[], object]] = {
        name: partial(both_ways, recorder.calls[name]) for name in (ATTENTION, MLP, PROJECTIONS, NORMS)
    }
    return parts | {
        HEAD: partial(both_ways, [head_call(step, features)]),
        GRADIENT: partial(measure_gradient, step),
        OPTIMIZER: step.optimizer.step,
    }


@contextmanager
def recorded(step: DrafterStep) -> Iterator[Recorder]:
    """Note what the step's attention and modules are called with."""
    recorder, passes = Recorder(), step.passes
    hooks = [
        module.register_forward_pre_hook(partial(_note, recorder, part))
        for name, module in step.drafter.named_modules()
        if (part := part_of(name, module)) is not None
    ]
    step.passes = RecordedPasses(passes, recorder)
    try:
        yield recorder
    finally:
        step.passes = passes
        for hook in hooks:
            hook.remove()


def part_of(name: str, module: nn.Module) -> str | None:
    """The part that a module is; None of what is part of another, or of none."""
    if isinstance(module, Mlp):
        return MLP
    if isinstance(module, Linear):
        return None if ".mlp." in name else PROJECTIONS
    return NORMS if isinstance(module, RmsNorm) else None


def _note(recorder: Recorder, part: str, module: nn.Module, inputs: Any) -> None:
    recorder.note(part, module.forward, inputs)


def head_call(step: DrafterStep, features: TargetFeatures) -> Call:
    """The head on as many rows as the batch supervises."""
    anchors, head_VH = locate_anchors(features.batch, step.drafter.shape.block_size), step.drafter.head_VH
    weight_N = slot_weights(anchors.supervised_AS, step.loss.gamma)[anchors.supervised_AS]
    label_N = anchors.label_AS[anchors.supervised_AS].to(head_VH.device)
    hidden_NH = torch.randn(len(label_N), head_VH.shape[1]).to(head_VH).requires_grad_()
    weight_N = weight_N.to(head_VH.device, torch.promote_types(head_VH.dtype, torch.float32))
    return lambda hidden: head_loss(hidden, head_VH, label_N, weight_N).loss, (hidden_NH,)


def both_ways(calls: list[Call]) -> None:
    """Forward and backward of each call."""
    for do, leaves in calls:
        out = do(*leaves)
        out.backward(torch.ones_like(out))
        for leaf in leaves:
            leaf.grad = None


def measure_gradient(step: DrafterStep) -> None:
    """What `finish` does beside the update."""
    float(step.sums.norm())
    step.direction.turn(step.sums.gradient)
    step.movement.begin()
    float(step.movement.norm())
    step.discard()
