"""Every bucket rule with every batching, strategy and aligner: the options of conf/ as they stand."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from dflash_exp.compose import compose
from dflash_exp.options import group_options
from dflash_exp.plan.epoch import Planner, PlanSettings
from dflash_exp.plan.seeds import Seeds
from dflash_exp.plan.sequences import Sequences

NEEDED = {"buckets=fixed": ["buckets.edges=[300,8192]"], "batches=fixed_size": []}
LENGTHS = (np.arange(400) * 149 % 1900 + 20).astype(np.int32)
"""20 to 1919 tokens: under every budget that ships."""
SEQUENCES = Sequences(LENGTHS, np.arange(400) * 3, weights=LENGTHS * 0.5, anchors=LENGTHS // 4)


@cache
def option(group: str, name: str) -> Any:
    """What the file says."""
    choice = f"{group}={name}"
    return vars(compose([choice, *NEEDED.get(choice, [])]))[group]


GROUPS = ("buckets", "batches", "interleave")
COMBINATIONS = list(product(*(group_options()[group] for group in GROUPS)))


@pytest.mark.parametrize("buckets", group_options()["buckets"])
def test_every_bucket_rule_goes_with_every_batching_strategy_and_aligner(buckets: str) -> None:
    aligners = [option("align", name) for name in group_options()["align"]]
    for combination in [one for one in COMBINATIONS if one[0] == buckets]:
        rule, batching, strategy = (option(group, name) for group, name in zip(GROUPS, combination, strict=True))
        plan = Planner(SEQUENCES, PlanSettings(rule, batching, strategy, 5, Seeds(0, 0, 0, 0))).epoch(1)
        rows = [row for step in plan.steps() for batch in step for row in batch.sequence_rows.tolist()]
        assert sorted(rows) == SEQUENCES.rows.tolist(), combination
        cost_N = plan.batch_sums(LENGTHS).astype(float)
        for align, (begin, end) in product(aligners, zip(plan.bounds[:-1], plan.bounds[1:], strict=True)):
            dealt = align.deal(range(begin, end), 3, cost_N[begin:end])
            assert sorted(number for held in dealt for number in held) == list(range(begin, end)), combination
    assert len(COMBINATIONS) == 6 * 6 * 11
