"""What plan.json says an epoch costs: two buckets of known lengths, worked out by hand."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.config import Config
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.models import known_shape
from dflash_exp.plan.align import Lpt, NoAlign, sync_efficiency
from dflash_exp.plan.cost import StageCosts, counted_costs
from dflash_exp.planning import plan_document, plan_run
from dflash_exp.pricing import trained_mfu
from dflash_exp.target import TargetConfig, TargetDtype
from dflash_exp.telemetry.duration import duration

LENGTHS = (10, 10, 10, 40, 40)
"""Three in a batch of bucket 0, two batches of one in bucket 1; two tokens each are prompt, so 7 and 37 candidates."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pricing") / "store"
    rows = [Row([1] * n, [False] * 2 + [True] * (n - 2), "a", "eos") for n in LENGTHS]
    write_store(folder, {"train": rows}, 10)
    return folder


def overrides(store: Path, *more: str) -> list[str]:
    buckets = ["buckets=fixed", "buckets.edges=[10,40]", "batches.budget_tokens=40", "batches_per_step=3"]
    return ["data=store", f"data.path={store}", "epochs=2", "drafter.anchors=20", "topology=cpu", *buckets, *more]


def document_of(config: Config) -> dict:
    return json.loads(json.dumps(plan_document(config, plan_run(config))))


def embedded_costs() -> StageCosts:
    shape = known_shape(TargetConfig("embedded", TargetDtype.FLOAT32))
    assert shape is not None
    return counted_costs(shape, n_target_layers=7, n_drafter_layers=2, n_taps=3, block_size=8)


@pytest.mark.parametrize("seed", range(4))  # orders that begin with either bucket
def test_costs_per_bucket_are_counted_from_the_target_s_config_and_the_drafter_s_shape(store: Path, seed: int) -> None:
    c = embedded_costs()
    short_target = c.target_padded_token * 30 + c.target_square * 300
    long_target = c.target_padded_token * 40 + c.target_square * 1600
    short_drafter = c.drafter_slot * 3 * 7 * 8 + c.drafter_anchor_token * 3 * 7 * 10 + c.drafter_token * 30
    long_drafter = c.drafter_slot * 20 * 8 + c.drafter_anchor_token * 20 * 40 + c.drafter_token * 40
    cost = document_of(compose(overrides(store, "interleave=shuffle", f"seeds.order={seed}")))["cost"]
    assert cost["target"] == pytest.approx([short_target, long_target])
    assert cost["drafter"] == pytest.approx([short_drafter, long_drafter])
    assert cost["bottleneck"] == "drafter"
    assert cost["unit"] == "FLOP" and "counted" in cost["basis"]


def test_the_target_is_the_bottleneck_where_there_are_few_anchors(store: Path) -> None:
    assert document_of(compose(overrides(store, "drafter.anchors=1")))["cost"]["bottleneck"] == "target"


def test_target_workers_share_their_rank_s_device_so_they_divide_nothing(store: Path) -> None:
    one, three = (document_of(compose(overrides(store, f"topology.target_workers={n}"))) for n in (1, 3))
    assert one["cost"] == three["cost"]
    assert three["memory_bytes"]["target_activations"] == 3 * one["memory_bytes"]["target_activations"]


SPREAD = ("topology.device=cuda", "topology.target_devices=2", "drafter.attention=grouped")


def test_devices_of_one_copy_share_its_work_out_only_while_as_many_workers_keep_them_busy(store: Path) -> None:
    asked = overrides(store, *SPREAD, "target.layer_split=2", "drafter.anchors=2")
    alone, both = (document_of(compose([*asked, f"topology.target_workers={n}"])) for n in (1, 2))
    target, drafter = (np.dot(alone["cost"][stage], alone["counts"]) for stage in ("target", "drafter"))
    assert target / 2 < drafter < target
    assert (alone["cost"]["bottleneck"], both["cost"]["bottleneck"]) == ("target", "drafter")


def test_a_plan_says_what_the_fullest_device_of_a_spread_target_holds(store: Path) -> None:
    copies, split = (
        document_of(compose(overrides(store, *SPREAD, "topology.target_workers=2", f"target.layer_split={n}")))
        for n in (1, 2)
    )
    weights = copies["memory_bytes"]["target_weights"]
    assert copies["memory_bytes"]["total"] == split["memory_bytes"]["total"] + weights
    with pytest.raises(ValueError, match=r"^target\.layer_split must be at most the target's layers, got 9 for 8; "):
        document_of(compose(overrides(store, "target.layer_split=9")))


@pytest.mark.parametrize(("align", "aligner"), [("none", NoAlign()), ("lpt", Lpt())])
def test_sync_efficiency_is_that_of_the_slower_stage_over_all_ranks(store: Path, align: str, aligner: object) -> None:
    ranks = ["topology.nodes=2", "topology.ranks_per_node=1", f"align={align}"]
    config = compose(overrides(store, *ranks))
    document = document_of(config)
    first = plan_run(config).planner.epoch(0)
    drafter_N = np.array(document["cost"]["drafter"])[first.order]
    assert isinstance(aligner, NoAlign | Lpt)
    expected = sync_efficiency(aligner, drafter_N, np.array([0, 3]), 2)
    assert document["sync_efficiency"] == pytest.approx(expected)
    # three batches on two ranks; the largest load is that of two of them
    assert 0.5 < expected < 1


def test_one_rank_waits_for_nobody(store: Path) -> None:
    assert document_of(compose(overrides(store)))["sync_efficiency"] == 1.0


def test_a_pass_of_fewer_slots_lowers_the_drafter_s_memory_and_nothing_else(store: Path) -> None:
    small, large = (
        document_of(compose(overrides(store, f"drafter.slots_per_pass={slots}")))["memory_bytes"]
        for slots in (32, 4096)
    )
    assert small.pop("drafter_activations") < large.pop("drafter_activations")
    assert small.pop("total") < large.pop("total")
    assert small.pop("largest_device") < large.pop("largest_device")
    assert small == large


def test_hours_are_the_run_s_tokens_over_the_speed_that_is_given(store: Path) -> None:
    hours = document_of(compose(overrides(store, "plan.tokens_per_s=2")))["hours"]
    assert hours == {
        "run": 220 / 2 / 3600, "epoch": 110 / 2 / 3600, "tokens_per_s": 2.0, "basis": "plan.tokens_per_s=2"
    }  # fmt: skip
    cut = compose(overrides(store, "plan.tokens_per_s=2", "epochs=null", "steps=3", "batches_per_step=1"))
    assert document_of(cut)["hours"]["run"] == pytest.approx(110 / 2 / 3600)
    assert document_of(compose(overrides(store)))["hours"] is None


def test_a_run_that_ends_within_an_epoch_has_the_tokens_of_its_steps(store: Path) -> None:
    planned = plan_run(compose(overrides(store, "epochs=null", "steps=5", "batches_per_step=1")))
    steps = [sum(LENGTHS[row] for plan in step for row in plan.sequence_rows) for step in planned.steps()]
    assert len(steps) == 5 and planned.n_tokens() == sum(steps) > 110


def test_a_hub_target_that_is_not_on_this_machine_leaves_null_what_follows_from_its_sizes(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    asked = overrides(store, "target=hf", "target.path=nobody/nothing", "plan.tokens_per_s=1", "drafter.taps=null")
    assert main(["plan", *asked, f"plan.out={tmp_path / 'out'}"]) == 0
    document = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert [document[key] for key in ("cost", "sync_efficiency", "memory_bytes")] == [None] * 3
    assert document["hours"]["epoch"] == 110 / 3600
    assert "config.json is not on this machine" in capsys.readouterr().out


def test_a_directory_that_holds_no_target_is_refused_in_one_line(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *overrides(store, "target=hf", f"target.path={tmp_path}"), f"plan.out={tmp_path}/o"]) == 2
    assert capsys.readouterr().err.startswith("dflash-exp: target.path must hold a causal LM")


def test_the_tables_name_every_bucket_s_contents_costs_and_the_bottleneck(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    asked = overrides(store, "topology.nodes=2", "plan.tokens_per_s=1", "batches.budget_tokens=60")
    assert main(["plan", *asked, f"plan.out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    contents = printed[printed.index("in the buckets") : printed.index("in the order")]
    rows = [line.split() for line in contents.splitlines() if line.strip()[:1].isdigit()]
    assert [row[:8] for row in rows] == [
        ["0", "10", "3", "30", "21", "1", "0.0", "%"],
        ["1", "40", "2", "80", "40", "2", "0.0", "%"],
    ]
    cost = json.loads((tmp_path / "out" / "plan.json").read_text())["cost"]
    assert rows[0][8:] == [f"{cost[stage][0] / 1e9:.1f}" for stage in ("target", "drafter")]
    assert "mean GFLOP of a batch, counted from" in contents
    assert "the bottleneck is the drafter: " in printed and "ranks wait for one another" in printed
    assert "memory of a rank at its peak, predicted: " in printed and f"an epoch {duration(110)}, at" in printed
    assert max(len(line) for line in printed.splitlines()) <= 100


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["plan.tokens_per_s=1", "plan.speed_from=x"], "plan.tokens_per_s or plan.speed_from must be given, not both"),
        (["plan.tokens_per_s=0"], "plan.tokens_per_s must be > 0, got 0"),
        (["plan.tokens_per_s=1", "plan.counts=[3]"], "plan.counts must be null with a speed"),
        (["plan.speed_from=nowhere"], "a run directory must hold config.yaml, got nowhere"),
    ],
)
def test_a_speed_that_cannot_be_is_refused_in_one_line(
    asked: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *asked]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dflash-exp: {message}") and said.count("\n") == 1


def test_a_configuration_of_before_there_were_speeds_can_be_read(store: Path) -> None:
    plan = compose(overrides(store)).plan
    assert type(plan)(plan.counts, plan.out) == dataclasses.replace(plan, tokens_per_s=None, speed_from=None)


def test_the_mfu_of_a_session_is_the_counted_work_of_its_steps_over_what_its_devices_could_do(store: Path) -> None:
    config = compose(overrides(store))
    planned = plan_run(config)
    plan, cost = (planned.planner, planned.epochs), document_of(config)["cost"]
    a_step = sum(cost[stage][0] + 2 * cost[stage][1] for stage in ("target", "drafter"))
    assert trained_mfu(config, plan, range(1, 2), 2.0, "NVIDIA H200") == pytest.approx(a_step / 2 / 989e12)
    assert trained_mfu(config, plan, range(0, 2), 2.0, "NVIDIA H200") == pytest.approx(a_step / 989e12)
    assert trained_mfu(config, plan, range(1, 2), 2.0, "a toaster") is None
    assert trained_mfu(config, plan, range(2, 2), 2.0, "NVIDIA H200") is None
