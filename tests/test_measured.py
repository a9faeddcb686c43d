"""A run's records give costs in seconds and another plan's hours: records made from coefficients give them back."""

import json
from pathlib import Path

import numpy as np
import pytest

from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.config import Config
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.door import to_yaml
from dflash_exp.measured import Measured, measure
from dflash_exp.plan.cost import StageCosts, Work, stage_costs
from dflash_exp.planning import Planned, plan_document, plan_run

COSTS = StageCosts(0.5, 0.01, 2e-5, 0.25, 0.002, 1e-5, 0.004)
PACE = 0.75


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured") / "store"
    lengths = np.random.default_rng(0).integers(6, 90, 80).tolist()
    rows = [Row([1] * n, [False] * 2 + [True] * (n - 2), "a", "eos") for n in lengths]
    write_store(folder, {"train": rows}, 10)
    return folder


def config_of(store: Path, *more: str) -> Config:
    small = ["batches.budget_tokens=96", "buckets.n_buckets=3", "batches_per_step=2", "drafter.anchors=9"]
    return compose(["data=store", f"data.path={store}", "epochs=2", "topology=cpu", *small, *more])


def step_work(planned: Planned) -> tuple[Work, list[int]]:
    """Each step's work and tokens, counted sequence by sequence."""
    lengths, anchors = planned.planner.sequences.lengths, planned.planner.sequences.anchors
    assert anchors is not None
    rows = []
    for step in planned.steps():
        padded = sum(int(lengths[p.sequence_rows].max()) * len(p.sequence_rows) for p in step)
        of_step = np.concatenate([p.sequence_rows for p in step])
        n, a = lengths[of_step].astype(int), anchors[of_step]
        rows.append((len(step), padded, (n * n).sum(), a.sum() * 8, (a * n).sum(), n.sum()))
    return Work(*np.array(rows).T), [row[-1] for row in rows]


def write_run(folder: Path, config: Config, n_steps: int | None = None) -> Planned:
    """A run directory whose stages took what COSTS say, and its line PACE of both."""
    planned = plan_run(config)
    work, tokens = step_work(planned)
    target_s, drafter_s = stage_costs(work, COSTS)
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(config))
    (folder / "plan.json").write_text(json.dumps(plan_document(config, planned)))
    records = [
        {
            "step": step + 1, "batch/tokens": int(n), "throughput/tokens_per_s": float(n / (PACE * (t + d))),
            "pipeline/target_busy_s": t, "pipeline/drafter_busy_s": d,
        }
        for step, (n, t, d) in enumerate(zip(tokens, target_s.tolist(), drafter_s.tolist(), strict=True))
    ]  # fmt: skip
    records[0] |= {"pipeline/target_busy_s": 1e3, "throughput/tokens_per_s": 1e-3}  # a cold first step
    lines = [json.dumps(record) for record in records[:n_steps]]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return planned


def measured_of(folder: Path, config: Config, planned: Planned) -> Measured:
    return measure(folder, planned.planner, planned.epochs, config.drafter.block_size)


@pytest.mark.parametrize("n_steps", [None, 18])
def test_a_run_s_records_give_back_the_costs_and_the_pace_they_were_made_with(
    store: Path, tmp_path: Path, n_steps: int | None
) -> None:
    config = config_of(store)
    planned = write_run(tmp_path / "run", config, n_steps)
    found = measured_of(tmp_path / "run", config, planned)
    assert found.pace == pytest.approx(PACE)
    done = len(planned.settings) if n_steps is None else n_steps
    work = step_work(planned)[0]
    for fitted, made in zip(stage_costs(work, found.costs), stage_costs(work, COSTS), strict=True):
        assert fitted == pytest.approx(made, rel=1e-3)
    assert found.basis == f"from {done - 1} steps of {tmp_path / 'run'}"


def test_another_plan_s_costs_are_in_seconds_and_its_hours_those_of_its_own_batches(
    store: Path, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", config_of(store))
    other = ["interleave=shuffle", "batches.budget_tokens=200", "epochs=3"]
    asked = ["data=store", f"data.path={store}", "topology=cpu", "drafter.anchors=9", *other]
    asked += [f"plan.speed_from={tmp_path / 'run'}", f"plan.out={tmp_path / 'out'}"]
    assert main(["plan", *asked]) == 0
    document = json.loads((tmp_path / "out" / "plan.json").read_text())
    target_s, drafter_s = stage_costs(step_work(plan_run(compose([*asked, "batches_per_step=1"])))[0], COSTS)
    assert document["cost"]["unit"] == "s" and "steps of" in document["cost"]["basis"]
    of_epoch = np.array(document["counts"]) @ np.array(document["cost"]["target"])
    assert of_epoch == pytest.approx(target_s.sum() / 3, rel=0.05)  # epochs are composed anew
    both_s = of_epoch + np.array(document["counts"]) @ np.array(document["cost"]["drafter"])
    assert document["hours"]["epoch"] == pytest.approx(PACE * both_s / 3600)
    assert document["hours"]["run"] == pytest.approx(3 * document["hours"]["epoch"])
    assert document["hours"]["run"] == pytest.approx(PACE * (target_s.sum() + drafter_s.sum()) / 3600, rel=0.05)
    assert document["hours"]["basis"] == document["cost"]["basis"]


def test_a_run_of_one_step_has_no_speed(store: Path, tmp_path: Path) -> None:
    config = config_of(store)
    planned = write_run(tmp_path / "run", config, 1)
    with pytest.raises(ValueError, match=r"^plan\.speed_from must be a run of two steps or more, got none in .*jsonl"):
        measured_of(tmp_path / "run", config, planned)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"^plan\.speed_from must be a run of two steps or more"):
        measured_of(tmp_path / "run", config, planned)


def test_a_run_whose_plan_comes_out_otherwise_is_refused(store: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config_of(store))
    changed = config_of(store, "seed=1")
    with pytest.raises(ValueError, match=r"^plan\.speed_from must be a run whose plan can be made again"):
        measured_of(tmp_path / "run", changed, plan_run(changed))
