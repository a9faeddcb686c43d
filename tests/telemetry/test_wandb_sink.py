"""The mirror in W&B when all is well: the real client against a server of our own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_exp.mirrors import Mirrors
from dflash_exp.telemetry.mirror import WandbArtifacts, WandbMode
from dflash_exp.telemetry.wandb_client import chosen_mode
from dflash_exp.telemetry.wandb_sink import open_wandb
from tests.telemetry.fake_wandb import KEY, FakeWandb
from tests.telemetry.wandb_sessions import (
    ID,
    LABELS,
    MARK,
    OPTIONS,
    files_with_the_key,
    meet,
    offline_files,
    opened,
    session,
)

pytestmark = pytest.mark.usefixtures("wandb_client")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    """A server that the client knows, and has the key to."""
    with FakeWandb() as fake:
        meet(fake.url, monkeypatch)
        yield fake


def test_a_run_is_there_under_its_identity_with_its_labels_configuration_and_records(
    server: FakeWandb, run_dir: Path
) -> None:
    said: list[str] = []
    session(run_dir, {1: 2.0, 2: 1.0, 3: 1.5}, said)
    run = server.runs[ID]
    assert said == [f"W&B: {server.url}/me/dflash/runs/{ID}"]
    assert (run.display_name, run.group, run.job_type, run.exit_code) == ("tiny-shuffle s3", "sweep", "train", 0)
    assert sorted(run.tags) == ["mine", "shuffle", "t" * 64]
    assert run.config["interleave"] == {"seed": 3}
    points = [{name: value for name, value in point.items() if name[0] != "_"} for point in run.history]
    first = {"train/loss": 2, MARK: 2, "train/clipped": 1, "batch/buckets": 5, "time_s": 0.25, "trainer/step": 1}
    assert points[0] == first
    assert [point["trainer/step"] for point in points] == [1, 2, 3]
    assert run.summary["train/loss"] == {"min": 1, "last": 1.5}
    assert {"2": "*", "5": 2} in [{"2": metric.get("2"), "5": metric.get("5")} for metric in run.config["_wandb"]["m"]]
    assert run.config["_wandb"]["m"][1]["1"] == "trainer/step"


def test_a_resumed_run_goes_on_in_the_same_run_with_one_axis_and_one_summary(server: FakeWandb, run_dir: Path) -> None:
    said: list[str] = []
    session(run_dir, {1: 0.5, 2: 2.0}, said)
    session(run_dir, {3: 1.0, 4: 1.5}, said)
    (run,) = server.runs.values()
    assert [point["trainer/step"] for point in run.history] == [1, 2, 3, 4]
    assert [point["_step"] for point in run.history] == [0, 1, 2, 3]
    assert run.summary["train/loss"] == {"min": 0.5, "last": 1.5}, "the client alone begins the minimum anew"
    assert len(said) == 2 and len(set(said)) == 1


def test_under_a_sweep_s_agent_the_run_is_the_one_that_the_agent_named(
    server: FakeWandb, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = run_dir.parent / "drawn.yaml"
    drawn.write_text("optim.lr: {value: 0.5}\n")
    names = {"SWEEP_ID": "sweep1", "RUN_ID": "agents0", "SWEEP_PARAM_PATH": str(drawn), "DIR": str(run_dir.parent)}
    for name, value in (names | {"PROJECT": "dflash", "ENTITY": "me"}).items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    said: list[str] = []
    session(run_dir, {1: 2.0, 2: 1.0}, said)
    (run,) = server.runs.values()
    assert (run.name, run.display_name, run.exit_code) == ("agents0", "tiny-shuffle s3", 0)
    assert [point["trainer/step"] for point in run.history] == [1, 2]
    assert run.config["interleave"] == {"seed": 3} and run.config["optim.lr"] == 0.5
    assert said == [f"W&B: {server.url}/me/dflash/runs/agents0"]
    assert list(run_dir.glob("wandb/run-*")), "its files are in the run directory all the same"


@pytest.mark.slow
def test_offline_sessions_become_one_run_when_they_are_synced(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    session(run_dir, {1: 0.5, 2: 2.0}, said)
    session(run_dir, {3: 1.0, 4: 1.5}, said)
    kept = offline_files(run_dir)
    assert len(kept) == 2
    with FakeWandb() as server:
        meet(server.url, monkeypatch)
        for path in kept:
            subprocess.run([sys.executable, "-m", "wandb", "sync", str(path.parent)], cwd=run_dir, check=True)
        (run,) = server.runs.values()
    assert run.name == ID
    assert [point["trainer/step"] for point in run.history] == [1, 2, 3, 4]
    assert run.summary["train/loss"] == {"min": 0.5, "last": 1.5}


def test_without_a_key_the_run_is_offline_which_is_said_once_and_nobody_is_asked(
    server: FakeWandb, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr("getpass.getpass", lambda *_: pytest.fail("asked"))
    said: list[str] = []
    session(run_dir, {1: 1.0}, said)
    sent_later = f"`wandb sync {run_dir}/wandb/offline-run-*` sends it later"
    assert said == [f"W&B: offline (no key; `wandb login` stores one); {sent_later}"]
    (kept,) = offline_files(run_dir)
    assert MARK.encode() in kept.read_bytes()
    assert server.n_requests == 0


def test_a_key_in_netrc_is_found(server: FakeWandb, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    netrc = Path(os.environ["HOME"]) / ".netrc"
    netrc.parent.mkdir()
    netrc.write_text(f"machine {server.url.removeprefix('http://')}\n  login user\n  password {KEY}\n")
    netrc.chmod(0o600)
    session(run_dir, {1: 1.0}, [])
    assert len(server.runs[ID].history) == 1
    assert files_with_the_key(run_dir) == []


def test_the_key_is_in_no_file_and_no_line(server: FakeWandb, run_dir: Path) -> None:
    said: list[str] = []
    session(run_dir, {1: 1.0}, said)
    assert len(server.runs[ID].history) == 1, "it was used"
    assert len([path for path in run_dir.rglob("*") if path.is_file()]) > 5
    assert files_with_the_key(run_dir) == []
    assert KEY not in "".join(said)


def test_a_key_that_cannot_be_one_makes_the_run_offline_without_being_told(
    server: FakeWandb, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet(server.url, monkeypatch, key="not-a-key")
    said: list[str] = []
    session(run_dir, {1: 1.0}, said)
    assert len(said) == 1 and said[0].startswith("W&B: offline (AuthenticationError: WANDB_API_KEY invalid")
    assert "not-a-key" not in said[0]
    assert offline_files(run_dir) and server.n_requests == 0


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_a_stop_is_marked_as_preempting_and_both_ends_are_no_success(
    status: str, server: FakeWandb, run_dir: Path
) -> None:
    sink = opened(run_dir, [])
    if status == "stopped":
        sink.mark_preempting()
    sink.close(status)
    assert server.runs[ID].preempting == (status == "stopped")
    assert server.runs[ID].exit_code == {"stopped": 75, "failed": 1}[status]


@pytest.mark.parametrize("alerts", [True, False])
def test_people_are_written_to_only_if_they_want_to_be(alerts: bool, server: FakeWandb, run_dir: Path) -> None:
    sink = opened(run_dir, [], replace(OPTIONS, alerts=alerts))
    sink.alert("failed " + "x" * 99, "loss is not finite at step 7")
    sink.close("failed")
    assert server.alerts == ([("failed " + "x" * 57, "loss is not finite at step 7")] if alerts else [])


def test_a_stop_that_no_requeue_mends_is_told(
    server: FakeWandb, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASH_EXP_MAX_REQUEUES", "1")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    Mirrors(opened(run_dir, [], replace(OPTIONS, alerts=True)), None).close("stopped", None, None)
    ((title, text),) = server.alerts
    assert title == "run stopped for good" and text.endswith("max_requeues=1: only dflash-exp resume goes on")
    assert not server.runs[ID].preempting


@pytest.mark.parametrize(
    ("artifacts", "kinds"),
    [(WandbArtifacts.none, []), (WandbArtifacts.final, ["drafter"]), (WandbArtifacts.all, ["drafter"])],
)
def test_the_files_that_were_asked_for_are_uploaded(
    artifacts: WandbArtifacts, kinds: list[str], server: FakeWandb, run_dir: Path
) -> None:
    drafter = run_dir / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text("{}")
    (drafter / "model.safetensors").write_bytes(b"weights")
    said: list[str] = []
    sink = opened(run_dir, said, replace(OPTIONS, artifacts=artifacts))
    sink.log_drafter(drafter)
    sink.close("finished")
    assert len(said) == 1, said
    assert [(artifact.kind, artifact.committed) for artifact in server.artifacts] == [(kind, True) for kind in kinds]
    if kinds:
        last = server.artifacts[-1]
        assert (last.name, sorted(last.aliases)) == (f"drafter-{ID}", ["final", "latest"])
        assert last.files == {"config.json": b"{}", "model.safetensors": b"weights"}


def test_the_plan_s_files_are_uploaded_as_they_are(server: FakeWandb, run_dir: Path) -> None:
    (run_dir / "order.npy").write_bytes(b"order")
    sink = opened(run_dir, [])
    sink.log_plan([run_dir / "order.npy"])
    sink.close("finished")
    (artifact,) = server.artifacts
    assert (artifact.kind, artifact.files, artifact.committed) == ("plan", {"order.npy": b"order"}, True)


@pytest.mark.parametrize("artifacts", [WandbArtifacts.none, WandbArtifacts.final])
def test_the_decoded_prompts_are_a_table(artifacts: WandbArtifacts, server: FakeWandb, run_dir: Path) -> None:
    said: list[str] = []
    sink = opened(run_dir, said, replace(OPTIONS, artifacts=artifacts))
    sink.log_prompts([{"loops": False, "tokens": 9}, {"loops": True, "tokens": 8}])
    sink.close("finished")
    assert len(said) == 1, said
    shown = [point["evaluation/prompts"] for point in server.runs[ID].history if "evaluation/prompts" in point]
    if artifacts is WandbArtifacts.none:
        assert shown == []
    else:
        (table,) = [json.loads(content) for artifact in server.artifacts for content in artifact.files.values()]
        assert shown[0]["_type"] == "table-file" and shown[0]["nrows"] == 2
        assert table["columns"] == ["prompt", "loops", "tokens"]
        assert table["data"] == [[0, False, 9], [1, True, 8]]


def test_off_means_no_client_and_no_files(run_dir: Path) -> None:
    off = replace(OPTIONS, mode=WandbMode.off)
    assert open_wandb(off, LABELS, run_dir, pytest.fail) is None
    assert list(run_dir.iterdir()) == []


def test_the_client_s_own_switch_holds_where_the_mode_is_auto() -> None:
    assert chosen_mode(WandbMode.auto, {"WANDB_MODE": "disabled"}) is WandbMode.off
    assert chosen_mode(WandbMode.auto, {"WANDB_MODE": "offline"}) is WandbMode.offline
    assert chosen_mode(WandbMode.auto, {}) is WandbMode.auto
    assert chosen_mode(WandbMode.online, {"WANDB_MODE": "offline"}) is WandbMode.online


def test_the_client_is_not_imported_before_a_sink_is_opened() -> None:
    program = (
        "import sys, dflash_exp.telemetry.wandb_sink, dflash_exp.telemetry.trackio_sink; print('wandb' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
