"""What a run's plan knows of each step before it happens, and what the verb `plan` leaves."""

import json
from pathlib import Path

import numpy as np
import pytest

from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.console import LastingConsole
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.plan.batches import TokenBudget
from dflash_exp.plan.buckets import Single
from dflash_exp.plan.epoch import Planner, PlanSettings
from dflash_exp.plan.interleave import Shuffle
from dflash_exp.plan.run_length import EpochSteps
from dflash_exp.plan.seeds import Seeds
from dflash_exp.plan.sequences import Sequences
from dflash_exp.planning import anchor_rule, plan_document, plan_run, step_settings, token_limit
from dflash_exp.summary import print_plan

LENGTHS = (8, 12, 6, 20, 9, 15, 7, 11)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planning") / "store"
    rows = [Row([1] * n, [False] * 2 + [True] * (n - 2), "a", "eos") for n in LENGTHS]
    write_store(folder, {"train": rows}, 10)
    return folder


def overrides(store: Path, *more: str) -> list[str]:
    small = ["batches.budget_tokens=24", "buckets.n_buckets=2", "steps=null", "epochs=2", "batches_per_step=2"]
    return ["data=store", f"data.path={store}", *small, *more]


def test_a_step_s_share_is_that_of_its_middle_and_its_constant_the_epoch_s() -> None:
    sequences = Sequences(np.full(5, 4), np.arange(5), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    settings = PlanSettings(Single(), TokenBudget(4, 0, None, False), Shuffle(), 2, Seeds(0, 0, 0, 0))
    epochs, optim = [EpochSteps(0, 3), EpochSteps(1, 2)], compose([]).optim
    found = step_settings(Planner(sequences, settings), epochs, np.full(5, 10), optim)
    # steps of 20, 20, 10 | 20, 20 supervised tokens, 90 in all
    assert [setting.share for setting in found] == pytest.approx([10 / 90, 30 / 90, 45 / 90, 60 / 90, 80 / 90])
    assert [setting.epoch_weight_per_step for setting in found] == [5.0] * 5
    assert {setting.n_batches for setting in found} == {2}
    assert {setting.peak_scale for setting in found} == {1.0}


@pytest.mark.parametrize(("scale", "factors"), [("none", (1, 1)), ("sqrt", (1, 2)), ("linear", (1, 4))])
def test_the_peak_of_an_arm_follows_the_size_of_its_steps_and_no_order(
    store: Path, scale: str, factors: tuple[int, int]
) -> None:
    # 8 sequences, one a batch: 8 steps or 2, so a step weighs an eighth of the epoch, which is the reference, or four
    fixed = ["data=store", f"data.path={store}", "batches=fixed_size", "batches.n_sequences=1", "buckets=single"]
    eighth = float(plan_run(compose(fixed)).planner.sequences.weights.sum()) / 8  # type: ignore[union-attr]
    scaled = [*fixed, f"optim.lr_scale={scale}", f"optim.lr_reference_weight={eighth}", "optim.lr=0.5", "epochs=2"]
    for order in ("shuffle", "sequential"):
        for n, factor in zip((1, 4), factors, strict=True):
            config = compose([*scaled, f"batches_per_step={n}", f"interleave={order}"])
            planned = plan_run(config)
            document = plan_document(config, planned)
            assert document["weight_per_step"] == pytest.approx(n * eighth, rel=1e-12)
            assert document["peak_lr"] == pytest.approx(0.5 * factor, rel=1e-12)
            assert {round(setting.peak_scale, 12) for setting in planned.settings} == {factor}


def test_a_run_trains_every_sequence_once_an_epoch_and_has_a_setting_for_every_step(store: Path) -> None:
    planned = plan_run(compose(overrides(store)))
    steps = list(planned.steps())
    assert len(steps) == len(planned.settings) == sum(part.n_steps for part in planned.epochs)
    for epoch in (0, 1):
        rows = [int(row) for step in steps for plan in step if plan.epoch == epoch for row in plan.sequence_rows]
        assert sorted(rows) == list(range(len(LENGTHS)))
        numbers = [plan.number for step in steps for plan in step if plan.epoch == epoch]
        assert numbers == list(range(len(numbers)))
    shares = [setting.share for setting in planned.settings]
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] < 1


def test_an_epoch_has_begun_with_its_first_step(store: Path) -> None:
    planned = plan_run(compose(overrides(store)))
    first = planned.epochs[0].n_steps
    begun = [planned.epochs_begun(n) for n in (0, 1, first, first + 1, len(planned.settings))]
    assert begun == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(("more", "limit"), [((), 24), (("data.max_tokens=16",), 16), (("data.max_tokens=99",), 24)])
def test_the_longest_sequence_is_the_smaller_of_limit_and_budget(
    store: Path, more: tuple[str, ...], limit: int
) -> None:
    assert token_limit(compose(overrides(store, *more))) == limit


def test_batches_of_a_fixed_size_limit_no_length(store: Path) -> None:
    fixed = ["data=store", f"data.path={store}", "batches=fixed_size", "batches.n_sequences=3", "buckets=single"]
    assert token_limit(compose(fixed)) is None
    assert token_limit(compose([*fixed, "data.max_tokens=30"])) == 30
    planned = plan_run(compose(fixed))
    assert sorted(len(plan.sequence_rows) for step in planned.steps() for plan in step) == [2, 3, 3]


def test_no_aligner_changes_a_hash(store: Path) -> None:
    configs = [compose(overrides(store, f"align={align}")) for align in ("none", "cost", "lpt")]
    epochs = [plan_run(config).planner.epoch(1) for config in configs]
    assert len({config.align for config in configs}) == 3
    assert len({(epoch.batches_sha256, epoch.order_sha256, epoch.plan_sha256) for epoch in epochs}) == 1


def test_anchors_follow_their_own_seed_the_epoch_and_the_row() -> None:
    supervised = np.ones(60, dtype=bool)
    rule = anchor_rule(compose(["drafter.anchors=5"]))
    first = rule(0, 3, supervised).tolist()
    assert len(first) == 5 and first == sorted(first)
    others = [rule(1, 3, supervised), rule(0, 4, supervised)]
    others.append(anchor_rule(compose(["drafter.anchors=5", "seeds.anchors=1"]))(0, 3, supervised))
    assert all(other.tolist() != first for other in others)
    same = anchor_rule(compose(["drafter.anchors=5", "seeds.order=1", "seeds.data=1", "interleave=shuffle"]))
    assert same(0, 3, supervised).tolist() == first


def test_the_share_of_the_learning_rate_is_null_where_the_run_ends_within_the_epoch(store: Path) -> None:
    for more, known in ((("epochs=1",), True), (("epochs=null", "steps=1"), False)):
        config = compose(overrides(store, *more))
        assert (plan_document(config, plan_run(config))["lr_share"] is not None) == known


@pytest.mark.parametrize("from_counts", [True, False])
def test_the_verb_plan_leaves_plan_and_order_and_never_over_another(
    store: Path, tmp_path: Path, from_counts: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan.counts=[5,3]"] if from_counts else overrides(store)
    for _ in range(2):
        assert main(["plan", *asked, f"plan.out={tmp_path / 'out'}"]) == 0
        assert ("on average, the learning rate peaks at 0.02" in capsys.readouterr().out) != from_counts
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "out-2"]
    document = json.loads((tmp_path / "out" / "plan.json").read_text())
    order = np.load(tmp_path / "out" / "order.npy")
    assert np.bincount(order).tolist() == document["counts"]
    assert document["counts"] == [5, 3] or not from_counts
    assert (document["edges"] is None) == from_counts
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["order.npy", "plan.json", "plan.png"]


@pytest.mark.parametrize("columns", ["80", None], ids=["a narrow terminal", "a pipe"])
def test_the_tables_of_a_plan_cut_no_number_and_no_heading(
    store: Path, columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    config = compose(overrides(store))
    document = plan_document(config, plan_run(config))
    document["edges"] = [8192 for _ in document["edges"]]
    document["per_bucket"]["tokens"] = [123_456 for _ in document["edges"]]
    print_plan(LastingConsole(), document)
    said = capsys.readouterr().out
    assert "…" not in said and all(word in said for word in ("sequences", "123,456", "8,192", "first 10 %"))


def test_a_sweep_of_plans_ends_with_one_table_and_leaves_each_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    asked = ["interleave=glob([d*,shuf*,str*])", "plan.counts=[6,9]", f"plan.out={tmp_path / 'out'}"]
    for _ in range(2):
        assert main(["plan", "-m", *asked]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "out-2"]
    plans = [json.loads(path.read_text()) for path in (tmp_path / "out-2").glob("*/plan.json")]
    assert sorted(plan["strategy"] for plan in plans) == ["diversity_first", "shuffle", "stride_jitter"]
    said = capsys.readouterr()
    shown = [line.partition("interleave=")[2].split()[0] for line in said.err.splitlines() if line.startswith("[")]
    assert shown == 2 * ["diversity_first", "shuffle", "stride_jitter"], "as they were typed, not as runs would go"
    _, side_by_side = said.out.rsplit("side by side", 1)
    for plan in plans:
        (row,) = [line for line in side_by_side.splitlines() if plan["strategy"] in line]
        assert [figure.strip() for figure in row.split("│")[2:5]] == [
            str(plan["max_run"]), f"{plan['mean_run']:.2f}", f"{plan['max_prefix_deviation']:.2f}"
        ]  # fmt: skip


def test_a_plan_that_cannot_be_is_missing_from_the_table_and_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    out, asked = tmp_path / "out", ["interleave=quota_random", "interleave.bound_batches=0.01,1", "plan.counts=[3,4]"]
    assert main(["plan", "-m", *asked, f"plan.out={out}"]) == 2
    assert [path.parent.name[0] for path in out.glob("*/plan.json")] == ["1"]
    table = capsys.readouterr().out.rsplit("side by side", 1)[1]
    assert "interleave.bound_batches=1 " in table and "0.01" not in table
