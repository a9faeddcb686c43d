"""How a run's blocks attend: chosen for its device, and compiled before its first step.

In: the configuration, the plan, the drafter on its device. Out: `Passes` for its step, and what was compiled for them.
No batch holds more than its budget, so one shape serves the run and is known before it.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch

from dflash_exp.config import Config
from dflash_exp.drafter.flex import compiled_flex, padded_shape
from dflash_exp.drafter.model import AttentionKind, Drafter
from dflash_exp.drafter.passes import GroupedPasses, PackedPasses, Passes
from dflash_exp.pipeline.stages import use_threads
from dflash_exp.plan.batches import Batching


@dataclass(frozen=True)
class AttentionMade:
    """What environment.json says of it."""

    kind: str
    """`grouped` or `flex`."""
    compilations: int
    compile_s: float

    def shown(self) -> str:
        """For the first line of a run; nothing where nothing was compiled."""
        if self.compilations == 0:
            return ""
        return f", {self.kind} attention compiled {self.compilations} times in {self.compile_s:.0f} s"


def most_tokens(batching: Batching, *lengths: np.ndarray) -> int:
    """The most real tokens that a batch can hold of sequences of these lengths."""
    if batching.budget_tokens is not None:
        return batching.budget_tokens
    assert batching.max_sequences is not None, "batches end by a budget or by a number of sequences"
    return batching.max_sequences * max(int(some.max()) for some in lengths)


def block_passes(config: Config, most_tokens: int, drafter: Drafter) -> tuple[Passes, AttentionMade]:
    """Passes for batches of at most so many tokens. Raises ValueError where `drafter.attention` cannot be."""
    slots, size = config.drafter.slots_per_pass, drafter.shape.block_size
    kind = config.drafter.attention.on(drafter.fc.weight.device.type, drafter.shape.head_dim)
    if kind is AttentionKind.grouped:
        return GroupedPasses(slots), AttentionMade(kind.value, 0, 0.0)
    passes = PackedPasses(slots, padded_shape(most_tokens, min(slots // size, most_tokens), size), compiled_flex())
    return passes, compiled(passes, drafter, config.pipeline.threads.drafter)


def compiled(passes: PackedPasses, drafter: Drafter, threads: int | None) -> AttentionMade:
    """All that the run will need, at the drafter's number of intra-op threads, which torch compiles for."""
    default, started_s = torch.get_num_threads(), time.perf_counter()
    use_threads(threads or default)
    try:
        n_graphs = passes.compile(drafter)
    except Exception as error:  # raised again: a compiler that is not there says much, but not what to do
        error.add_note("drafter.attention=grouped needs no compiler")
        raise
    finally:
        use_threads(default)
    return AttentionMade(AttentionKind.flex.value, n_graphs, round(time.perf_counter() - started_s, 1))
