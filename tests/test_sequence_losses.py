"""The curve of an order with nothing learned is what a run that learns nothing records, and it costs one forward."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dflash_exp import loss_measurement
from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.sequence_losses import losses_for
from dflash_exp.suggest import ConfigError
from dflash_exp.telemetry.sinks import read_records
from tests.world import VOCAB_SIZE, World, files_of, make_world

UNLEARNING = ("optim.lr=0", "optim.adamw_lr=0", "probe.every_steps=0", "evaluate=false")
"""Nothing is learned: what the run records is composition alone."""
SHORT = ("epochs=null", "steps=3", "probe.every_steps=0", "evaluate=false")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def trained(world: World) -> Path:
    """A run that does learn, three steps of it."""
    return world.train("trained", "interleave=shuffle", *SHORT)


@pytest.fixture
def run_dir(world: World, trained: Path, tmp_path: Path) -> Path:
    """A copy of the run without losses, to be written into or broken."""
    return shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("losses"))


def planned(world: World, run_dir: Path, out: Path, *more: str) -> Path:
    """Where the plan of these overrides was left."""
    asked = [f"plan.loss_from={run_dir}", f"plan.out={out}", *more]
    assert main(["plan", *world.overrides("unused", *asked)]) == 0
    return out


def recorded(run_dir: Path) -> np.ndarray:
    return np.array([record["train/loss"] for record in read_records(run_dir / "metrics.jsonl")])


@pytest.mark.parametrize("reduction", ["epoch", "step", "batch"])
def test_the_curve_of_any_order_is_what_a_run_that_learns_nothing_records(
    world: World, tmp_path: Path, reduction: str
) -> None:
    loss = f"loss.reduction={reduction}"
    orders = {name: (f"interleave={name}", loss) for name in ("shuffle", "sequential")}
    runs = {name: world.train(f"{name}_{reduction}", *UNLEARNING, *order) for name, order in orders.items()}
    for name, order in orders.items():
        curve = np.load(planned(world, runs["shuffle"], tmp_path / name, *order) / "loss.npy")
        assert curve.dtype == np.float32
        assert curve.tolist() == pytest.approx(recorded(runs[name]).tolist(), rel=3e-6)
    assert not np.allclose(recorded(runs["shuffle"]), recorded(runs["sequential"]), rtol=1e-3)


@pytest.mark.parametrize(
    "more", [("batches.budget_tokens=70", "buckets.n_buckets=1"), ("batches_per_step=1", "epochs=2")]
)
def test_the_same_losses_give_the_curve_of_other_batches_and_of_the_first_of_several_epochs(
    world: World, tmp_path: Path, more: tuple[str, ...]
) -> None:
    source, run_dir = world.train("unlearning", *UNLEARNING), world.train(more[0].partition("=")[0], *UNLEARNING, *more)
    curve = np.load(planned(world, source, tmp_path / "plan", *more) / "loss.npy")
    assert curve.tolist() == pytest.approx(recorded(run_dir)[: len(curve)].tolist(), rel=3e-6)


def test_the_losses_are_those_of_the_newest_checkpoint_not_of_the_first_weights(
    world: World, trained: Path, tmp_path: Path
) -> None:
    curve = np.load(planned(world, trained, tmp_path / "plan", "interleave=shuffle") / "loss.npy")
    losses = losses_for(compose(world.overrides("unused", "interleave=shuffle")), trained)
    assert losses.checkpoint == "step-00000003"
    assert abs(curve[0] - recorded(trained)[0]) > 1e-3  # which was recorded before the first update


def test_plan_json_and_the_folder_hold_what_the_curve_says(world: World, run_dir: Path, tmp_path: Path) -> None:
    out = planned(world, run_dir, tmp_path / "plan")
    assert sorted(p.name for p in out.iterdir()) == ["loss.npy", "loss.png", "order.npy", "plan.json", "plan.png"]
    document, curve = json.loads((out / "plan.json").read_text()), np.load(out / "loss.npy")
    source = document["loss_from"]
    assert (source["run"], source["checkpoint"]) == (str(run_dir), "step-00000003")
    assert len(curve) == document["steps_per_epoch"]
    assert source["curve_sd"] == pytest.approx(float(curve.std()), rel=1e-4)
    assert len(source["per_bucket_mean"]) == len(document["counts"])
    (path,) = (run_dir / "losses").iterdir()
    kept = load_file(path)
    assert kept["row"].tolist() == list(range(24))
    assert source["mean"] == pytest.approx(kept["loss"].sum() / kept["weight"].sum(), rel=1e-12)


def test_they_are_computed_once_and_read_the_second_time(
    world: World, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(run_dir)
    planned(world, run_dir, tmp_path / "one")
    (path,) = (run_dir / "losses").glob("step-00000003-*.safetensors")
    assert f"kept in {path}" in capsys.readouterr().out.replace("\n", "")
    assert files_of(run_dir) == before | {path.relative_to(run_dir).as_posix(): path.read_bytes()}
    monkeypatch.setattr(loss_measurement, "measure_losses", lambda *_: pytest.fail("computed again"))
    planned(world, run_dir, tmp_path / "two")
    assert f"are read from {path}" in capsys.readouterr().out.replace("\n", "")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_a_sweep_of_orders_has_one_file_of_losses_and_a_column_for_the_curve(
    world: World, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    asked = [o for o in world.overrides("unused") if not o.startswith("run_dir=")]
    asked += [f"plan.loss_from={run_dir}", f"plan.out={tmp_path / 'out'}", "interleave=glob([seq*,shuf*,str*])"]
    assert main(["plan", "-m", *asked]) == 0
    assert len(list((run_dir / "losses").iterdir())) == 1
    plans = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/plan.json")]
    assert len(plans) == 3 and len({plan["loss_from"]["mean"] for plan in plans}) <= 3
    table = capsys.readouterr().out.rsplit("side by side", 1)[1]
    assert "SD of loss" in table and "of its median" in table
    for plan in plans:
        (row,) = [line for line in table.splitlines() if plan["strategy"] in line]
        source = plan["loss_from"]
        assert [figure.strip() for figure in row.split("│")[8:10]] == [
            f"{source['curve_sd']:.3f}", f"{source['median_sd']:.4f}"
        ]  # fmt: skip


def test_a_run_with_losses_in_it_goes_on_as_it_would_without(world: World, tmp_path: Path) -> None:
    plain, with_losses = (world.train(f"on_{i}", *SHORT) for i in range(2))
    planned(world, with_losses, tmp_path / "plan")
    before = files_of(with_losses)
    world.train("on_1", *SHORT)
    assert files_of(with_losses) == before
    assert recorded(plain).tolist() == recorded(with_losses).tolist()


def test_other_weights_make_another_file_and_leave_the_first(world: World, run_dir: Path, tmp_path: Path) -> None:
    planned(world, run_dir, tmp_path / "one")
    first = files_of(run_dir / "losses")
    other = world.train("other", "interleave=sequential", *SHORT)
    shutil.rmtree(run_dir / "checkpoints")
    shutil.copytree(other / "checkpoints", run_dir / "checkpoints")
    planned(world, run_dir, tmp_path / "two")
    second = files_of(run_dir / "losses")
    assert len(second) == 2 and first.items() < second.items()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_stop_in_between_leaves_nothing(
    world: World, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    before, measured, n_batches = files_of(run_dir), DrafterStep.measure_each, [0]

    def stopped(step: DrafterStep, features: object) -> object:
        n_batches[0] += 1
        if n_batches[0] == 3:
            raise stop
        return measured(step, features)  # type: ignore[arg-type]

    monkeypatch.setattr(DrafterStep, "measure_each", stopped)
    with pytest.raises(stop):
        losses_for(compose(world.overrides("unused")), run_dir)
    assert files_of(run_dir) == before and not (run_dir / "losses").exists()


def refused(world: World, run_dir: Path, *more: str) -> str:
    """The one line that these overrides are refused with."""
    with pytest.raises(ConfigError) as caught:
        losses_for(compose(world.overrides("unused", *more)), run_dir)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_what_is_no_run_or_has_no_checkpoint_yet_is_refused(world: World, run_dir: Path) -> None:
    assert refused(world, run_dir / "no").startswith(f"plan.loss_from must be a run's directory, got {run_dir / 'no'};")
    assert "must hold config.yaml" in refused(world, run_dir / "checkpoints")
    shutil.rmtree(run_dir / "checkpoints")
    assert refused(world, run_dir).startswith("plan.loss_from must be a run with a checkpoint, got none yet in")


def test_a_damaged_checkpoint_is_refused_and_left_alone(world: World, run_dir: Path) -> None:
    weights = run_dir / "checkpoints" / "step-00000003" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    before = files_of(run_dir)
    assert "model.safetensors is not what was written" in refused(world, run_dir)
    assert files_of(run_dir) == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("loss.gamma=5", "the plan's loss.gamma: 4.0 in {run}, 5.0 here; say loss.gamma=4.0"),
        ("seed=1", "the plan's seeds.anchors: 0 in {run}, 1 here; say seeds.anchors=0"),
        ("drafter.anchors=5", "the plan's drafter.anchors: 4 in {run}, 5 here"),
        ("drafter.block_size=3", "the plan's drafter.block_size: 4 in {run}, 3 here"),
        ("target.path=elsewhere", "the plan's target.path: "),
    ],
)
def test_a_run_of_other_blocks_or_of_another_target_is_refused(
    world: World, run_dir: Path, override: str, said: str
) -> None:
    assert said.format(run=run_dir) in refused(world, run_dir, override)


def test_a_run_of_other_data_is_refused_and_both_are_named(world: World, run_dir: Path, tmp_path: Path) -> None:
    rows = [Row([1, 2, 3, 4, 5 + i], [False, True, True, True, True], "words", "eos") for i in range(4)]
    write_store(tmp_path / "store", {"train": rows}, VOCAB_SIZE)
    line = refused(world, run_dir, f"data.path={tmp_path / 'store'}")
    assert f"{run_dir} is of {world.root / 'store'}, the plan of {tmp_path / 'store'}" in line


@pytest.mark.parametrize("too_long", ["skip", "truncate"])
def test_a_run_of_other_sequences_of_the_same_data_is_refused(world: World, run_dir: Path, too_long: str) -> None:
    line = refused(world, run_dir, "data.max_tokens=30", f"data.too_long={too_long}")
    assert line.startswith("plan.loss_from must be a run of the plan's sequences: 24 of ")
    assert "data.max_tokens" in line


def changed(world: World, run_dir: Path, key: str, change: Callable[[str], str]) -> None:
    inputs = json.loads((run_dir / "inputs.json").read_text())
    (run_dir / "inputs.json").write_text(json.dumps(inputs | {key: change(inputs[key])}))


@pytest.mark.parametrize(
    ("key", "said"),
    [("train_sha256", "must be a run whose data is as it was"), ("target_fingerprint", "whose target is as it was")],
)
def test_tokens_or_weights_that_changed_since_the_run_was_begun_are_refused(
    world: World, run_dir: Path, key: str, said: str
) -> None:
    changed(world, run_dir, key, lambda digest: digest[::-1])
    assert said in refused(world, run_dir)
    assert not (run_dir / "losses").exists()


def test_losses_that_are_not_finite_are_refused_and_not_kept(
    world: World, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_measurement, "_measured", lambda *_: (np.array([1.0, np.inf, np.nan]), np.ones(3)))
    assert "2 of 3 are not at" in refused(world, run_dir)
    assert not (run_dir / "losses").exists()


def test_a_directory_that_cannot_be_written_and_a_file_that_was_cut_are_said(world: World, run_dir: Path) -> None:
    (run_dir / "losses").write_text("mine")
    assert "must be a run directory that can be written" in refused(world, run_dir)
    (run_dir / "losses").unlink()
    losses_for(compose(world.overrides("unused")), run_dir)
    (path,) = (run_dir / "losses").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(world, run_dir).startswith(f"{path} must be whole")


def test_counts_have_no_losses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "plan.counts=[3,4]", "plan.loss_from=runs/a"]) == 2
    rule = "plan.loss_from must be null with plan.counts, which has no data, got runs/a; leave one of them out"
    assert capsys.readouterr().err == f"dflash-exp: {rule}\n"
