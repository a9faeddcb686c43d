"""The predicted memory against what torch allocates for the embedded models on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from dflash_exp.building import Built, Outside, build
from dflash_exp.compose import compose
from dflash_exp.models import known_shape
from dflash_exp.plan.cost import Work, batch_work
from dflash_exp.plan.epoch import EpochPlan
from dflash_exp.plan.memory import Models, UnderWay, drafter_activations, peak_memory
from dflash_exp.planning import plan_document, plan_run
from dflash_exp.ranks import Alone
from tests.lengths import full_or

TOLERANCE = 0.25
EVENT = "[memory]"
LARGE = [(8192, 512, "float32"), (8192, 4096, "float32"), (8192, 4096, "bfloat16")]
CASES = [(2048, 512, "float32"), (2048, 4096, "float32"), (2048, 512, "bfloat16"), *full_or(LARGE, [])]
"""Tokens of a budget, slots of a pass, and what the drafter computes in."""


@dataclass(frozen=True)
class Case:
    built: Built
    plan: EpochPlan
    models: Models
    work: Work
    document: dict[str, object]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    budget_tokens, slots_per_pass, computes_in = request.param
    compute_width = 2 if computes_in == "bfloat16" else 4
    asked = [f"batches.budget_tokens={budget_tokens}", f"drafter.slots_per_pass={slots_per_pass}", "topology=cpu"]
    asked.append(f"drafter.compute_dtype={computes_in}")
    config = compose([*asked, "steps=1", "probe.prompts=0", "pipeline=lockstep"])
    planned, shape = plan_run(config), known_shape(config.target)
    assert shape is not None
    plan, sequences = planned.planner.epoch(0), planned.planner.sequences
    assert sequences.anchors is not None
    work = batch_work(plan.batches, sequences.lengths, sequences.anchors, 8)
    models = Models(shape, 8, True, 4, compute_width, compute_width == 4, 2, 3, 8, slots_per_pass, 4, True)
    return Case(
        build(config, planned, 0, Outside(Alone(), print, lambda: False)),
        plan,
        models,
        work,
        plan_document(config, planned),
    )


def peak_bytes(run: Callable[[], object]) -> int:
    """The most that the CPU's allocator held at once beyond what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events: list[Any] = [event for event in profiled.profiler.kineto_results.events() if event.name() == EVENT]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return int(np.cumsum(changes).max())


def test_activations_of_the_largest_and_of_a_middling_batch_are_as_predicted(case: Case) -> None:
    predicted = drafter_activations(case.models, case.work, case.plan.batches.sizes)
    number_of = np.argsort(case.plan.drawn)
    trainer = case.built.stages.drafter
    for canonical in np.argsort(predicted)[[-1, len(predicted) // 2]].tolist():
        batch = case.built.stages.prefetch(case.plan.batch(int(number_of[canonical])))
        features = case.built.stages.targets[0](batch)
        trainer.accumulate(features)  # makes the gradients, which the prediction counts apart
        assert peak_bytes(lambda f=features: trainer.accumulate(f)) == pytest.approx(
            predicted[canonical], rel=TOLERANCE
        )
        width = 3 * case.models.sizes.intermediate_size + 6 * case.models.sizes.hidden_size
        forward = 4 * int(case.work.padded_tokens[canonical]) * width
        assert peak_bytes(lambda b=batch: case.built.stages.targets[0](b)) == pytest.approx(forward, rel=TOLERANCE)


def test_weights_gradients_and_optimizer_are_exact(case: Case) -> None:
    found = peak_memory(case.models, case.work, case.plan.batches.sizes, UnderWay(1, None, 1, 0, 1))
    drafter, target = case.built.drafter, case.built.target.model.model
    assert found.target_weights == sum(p.nbytes for p in target.parameters())
    assert found.gradients == sum(p.nbytes for p in drafter.parameters())
    copied = 0 if case.models.shares_tables else drafter.head_VH.nbytes  # the target's head is its embedding
    assert found.drafter_weights == found.gradients + copied
    for parameter in drafter.parameters():
        parameter.grad = torch.zeros_like(parameter)
    case.built.optimizer.step()
    parts: Any = case.built.optimizer.state_dict().values()
    kept = [value for part in parts for state in part["state"].values() for value in state.values()]
    assert found.optimizer == sum(value.nbytes for value in kept if value.numel() > 1)  # beside AdamW's step counts


def test_plan_json_has_the_prediction_of_the_configuration(case: Case) -> None:
    line = UnderWay(1, None, 1, 0, 1)
    found = peak_memory(case.models, case.work, case.plan.batches.sizes, line)
    assert case.document["memory_bytes"] == found.as_json(case.models, line)
