"""What goes to a queue is checked as a whole, frozen, submitted once, and only where it is missing."""

import json
import os
import pickle
from pathlib import Path

import pytest
import yaml

from dflash_exp.cli import main
from dflash_exp.door import load
from dflash_exp.submitted import jobs_of
from dflash_exp.verbs.submit import alone_in
from tests.launch.conftest import FakeSlurm
from tests.world import World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def command(world: World, *more: str) -> list[str]:
    typed = [override for override in world.overrides("x") if not override.startswith("run_dir")]
    return ["train", *typed, "hydra/launcher=slurm", *more]


def sweep(world: World, *more: str) -> list[str]:
    return command(world, "-m", "interleave=shuffle,tijdeman", "hydra.sweep.dir=s", *more)


def jobs() -> list[dict[str, object]]:
    return json.loads(Path("s/sweep.json").read_text())["jobs"]


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one line that it is refused with; nothing is written."""
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not list(Path().rglob("*.yaml"))
    return said


def test_a_sweep_is_frozen_submitted_and_left(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(sweep(world, "seed=0,1")) == 0
    assert len(slurm.asked("sbatch")) == 1 and slurm.asked("srun") == []
    assert [job["job_id"] for job in jobs()] == ["7_0", "7_1", "7_2", "7_3"]
    for number, job in enumerate(jobs()):
        folder = Path("s") / str(job["run_dir"]) / "submitted"
        assert yaml.safe_load((folder / "overrides.yaml").read_text()) == job["overrides"]
        assert load(folder / "config.yaml").run_dir == f"s/{job['run_dir']}"
        assert {"git", "packages", "command"} <= json.loads((folder / "environment.json").read_text()).keys()
        assert jobs_of(folder.parent)[0].job_id == f"7_{number}"
        with Path(f"s/slurm/7_{number}_submitted.pkl").open("rb") as file:
            assert pickle.load(file).function.run_dirs == (str(folder.parent.absolute()),)
    said = capsys.readouterr().err
    assert "4 runs in 4 jobs x 24 h without GPUs (at most, by hydra.launcher.timeout_min" in said
    assert all(f"dflash-exp {verb} s" in said for verb in ("status", "logs", "cancel", "resume", "compare"))


def test_the_same_command_submits_only_what_is_missing(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    main(sweep(world, "seed=0,1"))
    slurm.answers("squeue", "7_0|RUNNING|gpu00\n7_1|PENDING|(Priority)\n7_2|PENDING|(Priority)\n7_3|PENDING|(Priority)")
    assert main(sweep(world, "seed=0,1")) == 0
    assert "nothing to submit: all runs are finished, at work or queued" in capsys.readouterr().err
    slurm.answers("sbatch", "Submitted batch job 9")
    slurm.answers("squeue", "7_1|PENDING|(Priority)\n")
    assert main(sweep(world, "seed=0,1,2")) == 0
    assert [job["job_id"] for job in jobs()] == ["9_0", "7_1", "9_1", "9_2", "9_3", "9_4"]
    first = Path("s") / str(jobs()[0]["run_dir"])
    assert [job.job_id for job in jobs_of(first)] == ["7_0", "9_0"]


def test_a_run_alone_is_one_job(world: World, slurm: FakeSlurm) -> None:
    assert main(command(world, "run_dir=alone")) == 0
    assert [job.job_id for job in jobs_of(Path("alone"))] == ["7"]
    assert {path.name for path in Path("alone").iterdir()} == {"submitted"}


def test_a_dry_run_prints_what_sbatch_would_get_and_writes_nothing(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.answers("sbatch", "sbatch: Job 1 to start at noon")
    assert main(sweep(world, "seed=0,1", "hydra.launcher.dry_run=true")) == 0
    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash\n") and "#SBATCH --array=0-3%4" in said.out
    assert "nothing is submitted; sbatch --test-only: sbatch: Job 1 to start at noon" in said.err
    assert list(Path().iterdir()) == [] and all("--test-only" in asked for asked in slurm.asked("sbatch"))


def test_without_slurm_a_dry_run_is_shown_and_a_submission_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(command(world, "hydra.launcher.dry_run=true")) == 0
    assert "there is no sbatch on this machine to ask" in capsys.readouterr().err
    assert main(command(world)) == 2
    assert "hydra/launcher must find Slurm, there is no squeue on this machine; submit" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


TWO_RANKS = "topology.ranks_per_node=2"
COLOCATED = ["topology=colocated8", "batches_per_step=8", "hydra/launcher=slurm_1gpu"]
WRONG = [
    (["seed=0,1", "optim.lr=0.1,-1"], "got -1.0 (job 2 of 8: interleave=shuffle seed=0 optim.lr=-1)"),
    (["batches_per_step=4,2,1", TWO_RANKS], "batches_per_step must be >= the number of ranks"),
    (["topology.ranks_per_node=1,2"], "jobs of one array must have the same nodes and ranks, got 1 x"),
    (COLOCATED, "must find its GPUs on a node, got 1 for 8; say hydra.launcher.gpus_per_node=8"),
    (["hydra.launcher.nodes=2"], "hydra.launcher.nodes must be topology.nodes, got 2 and 1"),
    (["hydra.launcher.packed=2", TWO_RANKS], "hydra.launcher.packed must be 1 for a run of several ranks, got 2 for 2"),
    (["hydra.launcher.gpu_memory_gb=0.0001"], "hydra.launcher.gpu_memory_gb must hold a rank's peak, predicted"),
    (["plan.tokens_per_s=0.0001"], "hydra.launcher.timeout_min and max_requeues must allow for the run, predicted"),
    (["hydra/launcher=slurm_8gpu", "hydra.launcher.max_gpu_hours=300"], "max_gpu_hours=300 must not be exceeded"),
    (["target.path=owner/not-here"], "target.path must be readable without a network, 'owner/not-here' lacks"),
    (["drafter.init_from=not-here"], "drafter.init_from=not-here: PATH must hold a drafter's config.json"),
    (["force=true"], "force must be false in a sweep that hydra/launcher runs elsewhere, got true; to train it anew"),
    (["data.path=nowhere"], "data.path must be a store with a manifest.json, got nowhere"),
]


@pytest.mark.parametrize(("more", "said"), WRONG)
def test_what_would_not_do_submits_nothing(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert said in refused(capsys, sweep(world, *more))
    assert slurm.asked("sbatch") == []


def test_what_is_predicted_has_its_basis_and_is_added_up(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = main(command(world, "hydra.launcher.dry_run=true", "plan.tokens_per_s=0.5", "hydra/launcher=slurm_8gpu"))
    assert alone == 0
    said = capsys.readouterr().err
    assert "1 run in 1 job x 8 GPUs x 0.3" in said and "(predicted plan.tokens_per_s=0.5)" in said
    assert "each job uses 0 of its 8 GPUs" in said


def test_what_sbatch_says_against_it_is_the_line(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.answers("sbatch", "sbatch: error: invalid partition specified: x", code=1)
    assert main(command(world, "hydra.launcher.partition=x", "run_dir=alone")) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "dflash-exp: sbatch refuses the job: invalid partition specified: x"
    assert not any(line.startswith("sbatch") for line in said)
    slurm.answers("sbatch", "Submitted batch job 8")
    assert main(command(world, "run_dir=alone")) == 0
    assert [job.job_id for job in jobs_of(Path("alone"))] == ["8"]


def test_resume_submits_again_as_it_was_submitted_last_and_here_only_when_told(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    main(sweep(world, "seed=0", "steps=1", "epochs=null", "evaluate=false", "hydra.launcher.partition=h100"))
    slurm.answers("sbatch", "Submitted batch job 9")
    slurm.answers("squeue", "7_0|PENDING|(Priority)\n")
    assert main(["resume", "s"]) == 0
    assert [job["job_id"] for job in jobs()] == ["7_0", "9"]
    assert "#SBATCH --partition=h100" in Path("s/slurm/9_submission.sh").read_text()
    slurm.answers("squeue", "")
    assert main(["resume", "s", "--here"]) == 0
    capsys.readouterr()
    assert main(["status", "s"]) == 0 and "2 finished" in capsys.readouterr().out
    assert len(slurm.asked("sbatch")) == 2


def test_status_says_why_a_run_waits_and_what_kept_it_from_beginning(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    main(sweep(world, "seed=0"))
    (Path("s") / str(jobs()[1]["run_dir"]) / "submitted" / "error.txt").write_text("target.path must exist\n")
    slurm.answers("squeue", "7_0|PENDING|(QOSMaxGRESPerUser)\n")
    capsys.readouterr()
    main(["status", "s"])
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("queued") and rows[0].endswith("job 7_0, QOSMaxGRESPerUser")
    assert rows[1].startswith("failed") and rows[1].endswith("target.path must exist")


def test_cancel_takes_what_waits_out_of_the_queue(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    main(sweep(world, "seed=0,1"))
    slurm.answers("squeue", "7_1|PENDING|(Priority)\n7_2|RUNNING|gpu00\n")
    slurm.answers("scancel", "")
    capsys.readouterr()
    assert main(["cancel", "s"]) == 0
    assert slurm.asked("scancel") == ["7_1 7_2"] and capsys.readouterr().err == "dflash-exp: 2 jobs cancelled\n"
    slurm.answers("squeue", "")
    assert main(["cancel", "s"]) == 0
    assert capsys.readouterr().err == "dflash-exp: nothing runs or waits\n"


def test_a_job_whose_list_of_jobs_is_damaged_keeps_no_other_from_being_cancelled_and_resumed(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    main(sweep(world, "seed=0,1"))
    damaged = str(jobs()[0]["run_dir"])
    (Path("s") / damaged / "submitted" / "job.json").write_text("{")
    slurm.answers("squeue", "7_1|PENDING|(Priority)\n7_2|RUNNING|gpu00\n")
    slurm.answers("scancel", "")
    capsys.readouterr()
    assert main(["cancel", "s"]) == 1
    assert slurm.asked("scancel") == ["7_1 7_2"]
    said = capsys.readouterr().err
    assert said.startswith("dflash-exp: 2 jobs cancelled\n") and said.count(damaged) == 2
    slurm.answers("squeue", "")
    assert main(["resume", "s"]) == 2
    said = capsys.readouterr().err
    assert "job.json must hold the run's jobs" in said and "to run: 3 missing" in said and "3 jobs submitted" in said


def test_waiting_ends_when_nothing_waits_or_runs_and_a_run_that_did_not_finish_is_a_failure(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_exp.verbs.submit.PAUSE_S", 0.0)
    assert main(sweep(world, "seed=0", "hydra.launcher.wait=true")) == 1
    assert "2 runs: 2 missing" in capsys.readouterr().out
    assert main(["resume", "s", "--here"]) == 0
    assert main(sweep(world, "seed=0", "hydra.launcher.wait=true")) == 0


def test_a_run_asked_for_anew_is_the_one_that_is_asked_for(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.answers("sbatch", "sbatch: error: no", code=1)
    assert main(command(world, "run_dir=alone", "seed=22")) == 2
    slurm.answers("sbatch", "Submitted batch job 9")
    assert main(command(world, "run_dir=alone", "seed=23")) == 0
    assert load(Path("alone/submitted/config.yaml")).seed == 23
    assert main(["resume", "alone", "--here"]) == 0
    (Path("alone") / "result.json").unlink()
    capsys.readouterr()
    assert main(command(world, "run_dir=alone", "seed=24")) == 2
    assert "run_dir must hold this run or nothing, alone differs in seed (23 there, 24 here)" in capsys.readouterr().err


def test_a_submission_killed_before_its_ids_were_written_is_found_again(
    world: World, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(run_dir: Path, job_id: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dflash_exp.verbs.submit.settle_job", killed)
        assert main(sweep(world, "seed=0")) == 1
    run_dirs = [Path("s") / str(job["run_dir"]) for job in jobs()]
    token = jobs_of(run_dirs[0])[0].token
    slurm.answers("squeue", f"7|{token}|PENDING\n7|{token}|PENDING\n")
    main(["status", "s"])
    assert [jobs_of(run_dir)[-1].job_id for run_dir in run_dirs] == ["7_0", "7_1"]
    slurm.answers("squeue", "7_0|PENDING|(Priority)\n7_1|PENDING|(Priority)\n")
    capsys.readouterr()
    assert main(["resume", "s"]) == 0 and "to run: nothing" in capsys.readouterr().err
    assert len(slurm.asked("sbatch")) == 1


def test_a_submission_that_never_reached_the_queue_is_resumed_in_the_queue(world: World, slurm: FakeSlurm) -> None:
    slurm.answers("sbatch", "sbatch: error: no", code=1)
    assert main(sweep(world, "seed=0")) == 2
    slurm.answers("sbatch", "Submitted batch job 9")
    assert main(["resume", "s"]) == 0
    assert [job["job_id"] for job in jobs()] == ["9_0", "9_1"]


def test_nothing_is_submitted_while_the_queue_is_silent(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    main(sweep(world, "seed=0"))
    slurm.answers("squeue", "Unable to contact slurm controller", code=1)
    for arguments in (sweep(world, "seed=0"), ["resume", "s"], ["cancel", "s"]):
        capsys.readouterr()
        assert main(arguments) == 2
        assert "squeue must answer, got Unable to contact slurm controller" in capsys.readouterr().err
    assert main(["status", "s"]) == 0 and "is not known: try again" in capsys.readouterr().out
    assert len(slurm.asked("sbatch")) == 1


def test_two_submissions_at_a_time_are_one(world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    with alone_in(Path("s")):
        assert main(sweep(world, "seed=0")) == 2
    assert "s must take one submission at a time, another is under way; wait" in capsys.readouterr().err
    assert main(sweep(world, "seed=0")) == 0


def test_a_dry_run_that_sbatch_refuses_is_wrong_input(world: World, slurm: FakeSlurm) -> None:
    slurm.answers("sbatch", "sbatch: error: invalid partition", code=1)
    assert main(command(world, "hydra.launcher.dry_run=true")) == 2


def test_a_job_that_died_before_its_run_began_says_where_to_look(
    world: World, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    main(sweep(world, "seed=0"))
    Path("s/slurm/7_1_0_log.out").write_text("module: command not found")
    capsys.readouterr()
    main(["status", "s"])
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("missing") and rows[1].startswith("failed")
    assert rows[1].endswith("job 7_1 ended before the run began: see s/slurm/7_1_0_log.out")


def test_two_sweeps_begun_in_the_same_second_have_two_directories(world: World, slurm: FakeSlurm) -> None:
    typed = [part for part in sweep(world, "seed=0") if not part.startswith("hydra.sweep.dir")]
    assert main(typed) == 0 and main(typed) == 0
    assert len(list(Path("runs").iterdir())) == 2


def test_nothing_of_the_environment_s_secrets_is_frozen(
    world: World, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 3)
    main(sweep(world, "seed=0"))
    for folder, _, files in os.walk("s"):
        for name in files:
            assert b"0123456789abcdef0123" not in (Path(folder) / name).read_bytes()
