"""A run directory that is damaged, or another run's, is refused in one line; a full disk hides no other error."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_exp import durable, experiment
from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.durable import remove_unfinished, write_whole
from dflash_exp.experiment import run
from dflash_exp.pipeline.drafter_train import DrafterTrainer
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError
from tests.lengths import full_or
from tests.world import World, files_of, make_world, result_of

ROOT = Path(__file__).parents[1]
QUICK = ("evaluate=false", "probe.every_steps=0", "checkpoint.every_steps=2")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def finished_run(world: World) -> Path:
    return world.train("finished", *QUICK)


def copy_of(finished_run: Path, name: str, finished: bool) -> Path:
    """Of the run, as it was finished or as if it had been killed at its end."""
    folder = finished_run.parent / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished_run, folder)
    if not finished:
        (folder / "result.json").unlink()
    return folder


def refused(world: World, name: str, *more: str) -> str:
    """The one line that the command is refused with."""
    with pytest.raises(ConfigError) as caught:
        world.train(name, *QUICK, *more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_finished_run_of_another_configuration_is_refused_and_nothing_is_touched(
    world: World, finished_run: Path
) -> None:
    before = files_of(finished_run)
    assert "differs in optim.lr (0.02 there, 0.5 here)" in refused(world, "finished", "optim.lr=0.5")
    world.train("finished", *QUICK, "checkpoint.keep_last=7")
    assert files_of(finished_run) == before


def test_a_finished_run_of_another_plan_is_refused(world: World, finished_run: Path) -> None:
    folder = copy_of(finished_run, "replanned", finished=True)
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(plan | {"order_sha256": "0" * 64}))
    assert "differs in order alone (order_sha256)" in refused(world, "replanned")


@pytest.mark.parametrize("left", [None, b"", b"{"])
def test_records_that_are_gone_are_refused_and_nothing_is_touched(
    world: World, finished_run: Path, left: bytes | None
) -> None:
    folder = copy_of(finished_run, "no_records", finished=False)
    (folder / "metrics.jsonl").unlink()
    if left is not None:
        (folder / "metrics.jsonl").write_bytes(left)
    before = files_of(folder)
    line = refused(world, "no_records")
    got = "no file" if left is None else f"{len(left)} bytes"
    assert f"metrics.jsonl must hold the {(finished_run / 'metrics.jsonl').stat().st_size:,} bytes" in line
    assert line.endswith(f"got {got}; put the file back as it was, or take another run_dir")
    assert files_of(folder) == before


GARBAGE = ("", "garbage {", "{}", "[]", "null", "\x00\x01")
DAMAGE = [
    *((name, content, "force=false") for name in ("result.json", "plan.json", "inputs.json") for content in GARBAGE),
    *(("config.yaml", content, "force=false") for content in GARBAGE),
    *(("result.json", content, "force=true") for content in GARBAGE),
    ("plan.json", None, "force=false"),
    ("inputs.json", None, "force=false"),
]
"""A file, what it holds (None: it is gone), and whether the run is forced, which reads result.json elsewhere."""


@pytest.mark.parametrize(("name", "content", "force"), DAMAGE)
def test_a_damaged_file_is_named_with_what_it_must_hold_and_the_mend(
    world: World, finished_run: Path, name: str, content: str | None, force: str
) -> None:
    folder = copy_of(finished_run, "damaged", finished=name == "result.json")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    line = refused(world, "damaged", force)
    assert line.startswith(f"{folder / name} must hold ") and ", got " in line and "; " in line.partition(", got ")[2]


def test_what_is_left_of_a_run_without_its_configuration_is_not_touched(world: World, finished_run: Path) -> None:
    folder = copy_of(finished_run, "headless", finished=False)
    (folder / "config.yaml").unlink()
    before = files_of(folder)
    world.train("headless", *QUICK)
    assert files_of(folder) == before
    assert result_of(world.root / "headless-2")["status"] == "finished"


@pytest.mark.parametrize("content", ["", "garbage: {", "[]", "- a"])
@pytest.mark.parametrize(
    "arguments", [["evaluate", "RUN"], ["plan", "plan.speed_from=RUN"], ["plan", "plan.loss_from=RUN"]]
)
def test_the_verbs_that_read_a_run_name_its_damaged_configuration(
    finished_run: Path, content: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(finished_run, "unreadable", finished=True)
    (folder / "config.yaml").write_text(content)
    assert main([argument.replace("RUN", str(folder)) for argument in arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(f"dflash-exp: {folder / 'config.yaml'} must hold a run's configuration, got ")


@pytest.mark.parametrize("content", ["", "[]"])
def test_a_drafter_whose_shape_cannot_be_read_is_named(
    finished_run: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(finished_run, "shapeless", finished=True)
    (checkpoint,) = (folder / "checkpoints").glob(f"step-{result_of(folder)['steps']:08d}")
    (checkpoint / "config.json").write_text(content)
    assert main(["evaluate", str(folder)]) == 2
    assert f"{checkpoint / 'config.json'} must hold a drafter's shape as JSON" in capsys.readouterr().err


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def full_for(name: str, monkeypatch: pytest.MonkeyPatch, module: Any = experiment) -> None:
    """No room for that file."""
    plain = module.write_json
    monkeypatch.setattr(
        module, "write_json", lambda path, value: (full_disk if path.name == name else plain)(path, value)
    )


def failing_finish(error: BaseException) -> Callable[..., Any]:
    def finish(self: DrafterTrainer) -> None:
        raise error

    return finish


def test_a_result_that_cannot_be_written_does_not_hide_what_ended_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full_for("result.json", monkeypatch)
    monkeypatch.setattr(DrafterTrainer, "finish", failing_finish(ArithmeticError("the run's own")))
    with pytest.raises(ArithmeticError, match="the run's own"):
        world.train("hidden", *QUICK)
    assert "result.json was not written (OSError: [Errno 28] No space left on device)" in capsys.readouterr().out
    assert not [path for path in (world.root / "hidden").iterdir() if path.name.endswith(".unfinished")]


def test_a_run_whose_result_cannot_be_written_has_failed_and_the_same_command_finishes_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        full_for("result.json", patch)
        with pytest.raises(OSError, match="No space left"):
            world.train("without_result", *QUICK)
    assert not (world.root / "without_result" / "result.json").exists()
    assert result_of(world.train("without_result", *QUICK))["status"] == "finished"


def test_a_stop_whose_result_cannot_be_written_is_a_stop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    full_for("result.json", monkeypatch)
    overrides = world.overrides("stopped", *QUICK)
    with StopSignals(lambda _: None) as stop:
        monkeypatch.setattr(experiment, "train", lambda *_: (_ for _ in ()).throw(experiment.Stopped))
        assert run(compose(overrides), overrides, stop) == 75


@pytest.mark.parametrize("at", ["fsync", "write"])
def test_a_write_that_fails_leaves_what_was_there_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    path = tmp_path / "result.json"
    write_whole(path, "before")
    monkeypatch.setattr(durable.os, "fsync" if at == "fsync" else "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "after")
    assert files_of(tmp_path) == {"result.json": b"before"}


def test_what_a_killed_process_left_is_cleared_and_a_user_s_own_hidden_files_are_not(tmp_path: Path) -> None:
    code = "import os; from pathlib import Path; from dflash_exp import durable\n"
    code += "durable.os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
    code += f"durable.write_whole(Path({str(tmp_path / 'result.json')!r}), 'half')"
    died = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60)
    assert died.returncode == -signal.SIGKILL and len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".lock").touch()
    (tmp_path / ".notes").touch()
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".notes"]


def test_a_resumed_run_clears_its_directory_too(world: World, finished_run: Path) -> None:
    folder = copy_of(finished_run, "littered", finished=False)
    for name in (".result.json-abc.unfinished", "checkpoints/.latest-abc.unfinished"):
        (folder / name).touch()
    world.train("littered", *QUICK)
    assert not list(folder.rglob("*.unfinished"))


def test_evaluating_a_run_that_has_not_finished_leaves_its_own_evaluation_to_its_end(
    world: World, finished_run: Path
) -> None:
    folder = copy_of(finished_run, "looked_at", finished=False)
    name = f"evaluation-step-{result_of(finished_run)['steps']:08d}"
    for _ in range(2):
        assert main(["evaluate", str(folder), "--limit", "1", "--max-new-tokens", "4"]) == 0
    early = {path.name: path.read_bytes() for path in folder.glob("evaluation*")}
    assert sorted(early) == [f"{name}-2.json", f"{name}.json"]
    world.train("looked_at", *[one for one in QUICK if one != "evaluate=false"])
    assert json.loads((folder / "evaluation.json").read_text())["prompts"] == 3
    assert {path: (folder / path).read_bytes() for path in early} == early


def test_an_evaluation_that_is_there_is_not_overwritten_by_the_run_s_end(
    world: World, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(finished_run, "twice", finished=False)
    (folder / "evaluation.json").write_text("mine")
    world.train("twice", *[one for one in QUICK if one != "evaluate=false"])
    assert (folder / "evaluation.json").read_text() == "mine"
    assert json.loads((folder / "evaluation-2.json").read_text())["prompts"] == 3
    assert f"this run's decoding is in {folder / 'evaluation-2.json'}" in capsys.readouterr().out


def in_a_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Of bash, with `$DX` as the script and the exit code of the first command of a pipe."""
    script = f"{sys.executable} -m dflash_exp.cli"
    variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DX": script} | environment
    return subprocess.run(
        ["bash", "-c", f"{line}\nexit ${{PIPESTATUS[0]}}"], env=variables, capture_output=True, text=True, timeout=300
    )


def test_an_evaluation_whose_reader_is_gone_is_kept(finished_run: Path) -> None:
    folder = copy_of(finished_run, "unread", finished=True)
    done = in_a_shell(f"$DX evaluate {folder} --limit 1 --max-new-tokens 4 | true")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "evaluation.json").read_text())["prompts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "encoding"),
    [
        (">/dev/full 2>&1", "utf-8"),
        (">&- 2>&-", "utf-8"),
        *full_or([("", "ascii"), ("| true", "utf-8"), ("2>&-", "latin-1")], []),
    ],
)
def test_a_run_whose_output_cannot_be_written_finishes(world: World, ends: str, encoding: str) -> None:
    name = f"unwritten_{len(list(world.root.iterdir()))}"
    overrides = " ".join(f"'{one}'" for one in world.overrides(name, "probe.every_steps=0") if "wandb" not in one)
    done = in_a_shell(f"$DX train {overrides} telemetry.wandb.mode=\"'off'\" {ends}", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert result_of(world.root / name)["status"] == "finished"
    if encoding == "ascii":
        assert "?, not looping" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "shown"), [("plan plan.counts=[3,4] plan.out=plans", "longest run"), ("--help", "?")]
)
def test_what_ascii_lacks_is_printed_as_a_question_mark_by_every_verb(
    tmp_path: Path, arguments: str, shown: str
) -> None:
    done = in_a_shell(f"cd {tmp_path} && $DX {arguments}", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and shown in done.stdout, done.stderr
