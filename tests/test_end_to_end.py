"""A whole run on a tiny random target: what its directory holds, that it repeats, and what it refuses in one line."""

import json
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.door import load
from dflash_exp.experiment import run
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError
from dflash_exp.summary import print_summary
from dflash_exp.telemetry.sinks import read_records
from tests.world import VOCAB_SIZE, World, files_of, make_world, result_of, results_only

SAME = ("trained_batches_sha256", "anchors_sha256", "init_sha256", "probe_sha256")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def finished_run(world: World) -> Path:
    return world.train("first")


def test_a_run_s_directory_holds_what_the_contract_says_and_nothing_else(finished_run: Path) -> None:
    n_steps = result_of(finished_run)["steps"]
    checkpoint = f"checkpoints/step-{n_steps:08d}"
    assert {p.relative_to(finished_run).as_posix() for p in finished_run.rglob("*")} == {
        "config.yaml", "overrides.yaml", "environment.json", "inputs.json", "plan.json", "metrics.jsonl", "result.json",
        "evaluation.json", "logs", ".lock", "checkpoints", "checkpoints/latest", checkpoint,
        f"{checkpoint}/config.json", f"{checkpoint}/model.safetensors", f"{checkpoint}/state.pt",
        f"{checkpoint}/progress.json", f"{checkpoint}/checksums.json",
    }  # fmt: skip
    assert (finished_run / "checkpoints" / "latest").read_text().strip() == f"step-{n_steps:08d}"


def test_there_is_one_record_for_every_optimizer_step_and_a_probe_every_second(finished_run: Path) -> None:
    records, result = read_records(finished_run / "metrics.jsonl"), result_of(finished_run)
    n_steps = json.loads((finished_run / "plan.json").read_text())["steps_per_epoch"]
    assert n_steps > 3
    assert [record["step"] for record in records] == list(range(1, n_steps + 1))
    probed = [record["step"] for record in records if "probe/loss" in record]
    assert probed == [step for step in range(1, n_steps + 1) if step % 2 == 0 or step == n_steps]
    assert (result["status"], result["steps"], result["epochs"], result["restarts"]) == ("finished", n_steps, 1, 0)
    assert result["tokens"] == sum(record["batch/tokens"] for record in records)


def test_a_target_spread_over_devices_gives_the_same_records_and_decoded_tokens(
    world: World, finished_run: Path
) -> None:
    spread = world.train("spread", "target.layer_split=3")
    assert results_only(spread) == results_only(finished_run)
    one, other = (json.loads((run_dir / "evaluation.json").read_text()) for run_dir in (spread, finished_run))
    assert one["tau_pooled"] == other["tau_pooled"] and one["lossless"] == "3/3"


def test_the_summary_of_a_run_says_what_the_doctor_found(finished_run: Path) -> None:
    evaluation = json.loads((finished_run / "evaluation.json").read_text())
    console = Console(record=True, width=200, file=StringIO())
    print_summary(console, finished_run, result_of(finished_run), evaluation, 1.0)
    shown = console.export_text()
    assert f"τ teacher-forced on its data {evaluation['doctor']['tau_data']:.2f}, on these texts" in shown
    assert "WARNING data not from the target: " in shown, "the store's tokens are random"


def test_where_the_time_went_is_in_the_result_and_nothing_of_it_is_host_bound_on_a_cpu(finished_run: Path) -> None:
    result = result_of(finished_run)
    assert result["time"] == result["time_by_rank"][0] and result["time"]["drafter_busy_s"] > 0
    assert result["time"]["target_host_bound_s"] is result["time"]["drafter_host_bound_s"] is None


def test_the_directory_s_configuration_is_the_one_that_ran(world: World, finished_run: Path) -> None:
    overrides = world.overrides("first")
    assert load(finished_run / "config.yaml") == compose(overrides)
    assert (finished_run / "overrides.yaml").read_text().count("- ") == len(overrides)


def test_a_step_of_one_bucket_says_how_long_its_gradient_was_and_how_far_it_moved(finished_run: Path) -> None:
    records = read_records(finished_run / "metrics.jsonl")
    alone = [(record, set(record["batch/buckets"])) for record in records if len(set(record["batch/buckets"])) == 1]
    assert alone, "some step has batches of one bucket"
    for record, (bucket,) in alone:
        told = [record[f"bucket/{bucket}/{name}"] for name in ("grad_norm", "update_norm", "clipped_share")]
        assert min(told[:2]) > 0 and 0 <= told[2] <= 1


def test_two_runs_of_one_configuration_give_the_same_results_bit_for_bit(world: World, finished_run: Path) -> None:
    again = world.train("again")
    assert results_only(again) == results_only(finished_run)
    weights = f"checkpoints/step-{result_of(again)['steps']:08d}/model.safetensors"
    assert (again / weights).read_bytes() == (finished_run / weights).read_bytes()
    hashes = [{k: v for k, v in result_of(r).items() if k.endswith("_sha256")} for r in (again, finished_run)]
    assert len(hashes[0]) == 5 and hashes[0] == hashes[1]


def test_a_step_twice_as_heavy_as_lr_is_meant_for_is_taken_at_the_scaled_rate(world: World, finished_run: Path) -> None:
    weight = json.loads((finished_run / "plan.json").read_text())["weight_per_step"]
    scaled = world.train("scaled", "optim.lr_scale=linear", f"optim.lr_reference_weight={weight / 2}", "evaluate=false")
    rates = [[record["train/lr"] for record in read_records(run / "metrics.jsonl")] for run in (scaled, finished_run)]
    assert rates[0] == pytest.approx([2 * rate for rate in rates[1]], rel=1e-12) and max(rates[1]) > 0


@pytest.mark.parametrize("workers", [1, 3])
def test_the_overlapped_line_gives_the_results_of_a_for_loop_bit_for_bit(
    world: World, finished_run: Path, workers: int
) -> None:
    assert "Overlapped" in (finished_run / "config.yaml").read_text()
    loop = world.train(f"loop_{workers}", "pipeline=lockstep", "evaluate=false")
    ahead = (f"topology.target_workers={workers}", f"pipeline.features_ahead={workers}", "pipeline.batches_ahead=1")
    overlapped = world.train(f"overlapped_{workers}", *ahead, "evaluate=false")
    assert results_only(overlapped) == results_only(loop) == results_only(finished_run)
    weights = f"checkpoints/step-{result_of(loop)['steps']:08d}/model.safetensors"
    assert (overlapped / weights).read_bytes() == (loop / weights).read_bytes()


def test_two_strategies_train_the_same_batches_and_anchors_in_another_order(world: World, finished_run: Path) -> None:
    other = world.train("shuffled", "interleave=shuffle", "evaluate=false")
    one, two = result_of(finished_run), result_of(other)
    assert {name: one[name] for name in SAME} == {name: two[name] for name in SAME}
    assert one["trained_order_sha256"] != two["trained_order_sha256"]
    assert not (other / "evaluation.json").exists()


def test_a_finished_run_is_not_trained_again_unless_forced_and_then_beside_it(world: World, finished_run: Path) -> None:
    before = files_of(finished_run)
    world.train("first")
    assert not (world.root / "first-2").exists()
    world.train("first", "force=true", "evaluate=false")
    assert result_of(world.root / "first-2")["status"] == "finished"
    assert files_of(finished_run) == before


def test_a_directory_that_is_there_is_never_touched(world: World) -> None:
    taken = world.root / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    world.train("taken", "evaluate=false")
    assert files_of(taken) == {"notes.txt": b"mine"}
    assert result_of(world.root / "taken-2")["status"] == "finished"


def test_decoding_with_the_drafter_loses_nothing_in_float64(finished_run: Path) -> None:
    evaluation = json.loads((finished_run / "evaluation.json").read_text())
    assert evaluation["lossless"] == "3/3"
    assert evaluation["checkpoint"] == (finished_run / "checkpoints" / "latest").read_text().strip()
    assert 1 <= evaluation["tau_pooled"] <= 4 and len(evaluation["accepted_at"]) == 3


def test_the_verb_evaluate_decodes_a_run_and_keeps_what_was_written_before(world: World) -> None:
    run_dir = world.train("evaluated", "evaluate=false")
    assert main(["evaluate", str(run_dir), "--limit", "2", "--max-new-tokens", "6"]) == 0
    first = (run_dir / "evaluation.json").read_bytes()
    assert json.loads(first)["prompts"] == 2 and json.loads(first)["lossless"] == "2/2"
    assert main(["evaluate", str(run_dir), "--limit", "1", "--max-new-tokens", "6"]) == 0
    assert (run_dir / "evaluation.json").read_bytes() == first
    assert json.loads((run_dir / "evaluation-2.json").read_text())["prompts"] == 1


def test_the_loss_falls_when_a_handful_of_conversations_is_learnt_by_heart(world: World) -> None:
    handful = ("data.too_long=skip", "data.max_tokens=24", "buckets.n_buckets=1", "epochs=null", "steps=60")
    schedule = ("optim.schedule=constant", "optim.warmup_share=0", "probe.every_steps=0", "evaluate=false")
    losses = [record["train/loss"] for record in results_only(world.train("by_heart", *handful, *schedule))]
    assert len(losses) == 60
    assert sum(losses[-6:]) < 0.5 * sum(losses[:6])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_target_of_any_dtype_trains_a_drafter(world: World, dtype: str) -> None:
    run_dir = world.train(f"in_{dtype}", f"target.dtype={dtype}", "epochs=null", "steps=1", "prompts.limit=1")
    assert result_of(run_dir)["status"] == "finished"


def refused(world: World, *more: str) -> str:
    """The one line that a run refuses these overrides with; nothing may have been made."""
    with pytest.raises(ConfigError) as caught:
        run(compose(world.overrides("refused", *more)), [], StopSignals())
    assert not (world.root / "refused").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_budget_under_the_longest_sequence_is_refused_with_the_mend(world: World) -> None:
    line = refused(world, "batches.budget_tokens=20")
    assert line.startswith("sequences must have at most 20 tokens") and "data.too_long" in line


@pytest.mark.parametrize("drafter", [("drafter.taps=[0,9]",), ("drafter.taps=null", "drafter.n_layers=4")])
def test_a_target_with_too_few_layers_for_the_taps_is_refused(world: World, drafter: tuple[str, ...]) -> None:
    line = refused(world, *drafter)
    assert line.startswith("drafter.taps must be") and "4 layers" in line


def test_rope_that_depends_on_the_longest_sequence_is_refused(world: World) -> None:
    folder = world.root / "dynamic"
    shutil.copytree(world.root / "target", folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    assert "dynamic" in refused(world, f"target.path={folder}")


def changed_store(world: World, name: str, change: Callable[[Path], object]) -> Path:
    folder = world.root / name
    shutil.copytree(world.root / "store", folder)
    change(folder)
    return folder


def test_a_store_that_was_changed_is_refused(world: World) -> None:
    def flip(folder: Path) -> None:
        whole = bytearray((folder / "train.arrow").read_bytes())
        whole[len(whole) // 2] ^= 1
        (folder / "train.arrow").write_bytes(whole)

    folder = changed_store(world, "flipped", flip)
    assert "train.arrow must have the hash its manifest states" in refused(world, f"data.path={folder}")


def test_a_store_for_a_larger_vocabulary_than_the_target_s_is_refused(world: World) -> None:
    row = Row([1, VOCAB_SIZE, 2, 3], [False, True, True, True], "words", "eos")
    splits = {"train": [row], "probe": [row], "prompts": [row]}
    write_store(world.root / "foreign", splits, VOCAB_SIZE + 1)
    line = refused(world, f"data.path={world.root / 'foreign'}")
    assert line.startswith(f"data.path must be tokenised for the target, whose vocabulary is {VOCAB_SIZE}")


@pytest.mark.parametrize("split", ["probe", "prompts"])
def test_a_store_without_a_split_that_the_run_needs_is_refused_before_training(world: World, split: str) -> None:
    def leave_out(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["splits"][split]
        (folder / "manifest.json").write_text(json.dumps(manifest))

    folder = changed_store(world, f"without_{split}", leave_out)
    assert f"must have a {split} split" in refused(world, f"data.path={folder}")


def test_a_trace_of_some_steps_has_the_work_of_every_stage_s_thread(world: World) -> None:
    run_dir = world.train("traced", "profile.steps=[2,3]", "evaluate=false", "checkpoint.every_steps=0")
    events = json.loads((run_dir / "logs" / "trace-steps-2-3.json").read_text())["traceEvents"]
    threads = {event["tid"] for event in events if event.get("cat") == "cpu_op"}
    assert len(threads) >= 2


def test_the_first_step_can_be_traced_and_a_step_that_never_comes_leaves_no_file(world: World) -> None:
    assert list((world.train("first_traced", "profile.steps=[1,1]", "evaluate=false") / "logs").iterdir())
    assert not list((world.train("none_traced", "profile.steps=[900,901]", "evaluate=false") / "logs").iterdir())
