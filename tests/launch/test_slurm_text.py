"""What sbatch gets says what the launcher's settings say, and nothing that was not asked for."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_exp.compose import compose_jobs
from dflash_exp.launch.launchers import Slurm
from dflash_exp.launch.slurm import JobShape, submitter
from dflash_exp.suggest import ConfigError

SHAPE = JobShape("sweep", nodes=2, ranks_per_node=8, code=Path("/shared/it's code"), token="abc")


def settings(*overrides: str) -> Slurm:
    (job,) = compose_jobs(["hydra/launcher=slurm_8gpu", *overrides])
    assert isinstance(job.launcher, Slurm)
    return job.launcher


def lines(launcher: Slurm, n_jobs: int = 1, shape: JobShape = SHAPE) -> list[str]:
    return submitter(launcher, shape, Path("/shared/slurm")).text(n_jobs).splitlines()


def test_a_job_of_whole_nodes_is_asked_for() -> None:
    text = lines(settings("hydra.launcher.partition=h100", "hydra.launcher.account=me", "hydra.launcher.qos=high"))
    asked = {line.removeprefix("#SBATCH --") for line in text if line.startswith("#SBATCH")}
    assert asked == {
        "account=me", "comment=abc", "cpus-per-task=8", "gpus-per-node=8", "job-name=sweep", "mem=0", "nodes=2",
        "ntasks-per-node=8", "open-mode=append", "output=/shared/slurm/%j_0_log.out", "partition=h100", "qos=high",
        "requeue", "signal=USR2@120", "time=1440",
    }  # fmt: skip


def test_several_jobs_are_one_array_of_so_many_at_a_time() -> None:
    text = lines(settings("hydra.launcher.array_parallelism=3"), n_jobs=50)
    assert "#SBATCH --array=0-49%3" in text


def test_the_site_s_lines_come_first_then_the_copy_of_the_code_then_srun() -> None:
    text = lines(settings("hydra.launcher.setup=[module load cuda]"))
    begin = text.index("module load cuda")
    assert text[begin + 1] == """export PYTHONPATH='/shared/it'"'"'s code'"${PYTHONPATH:+:$PYTHONPATH}\""""
    assert text[begin + 2 : begin + 4] == [
        "export PYTHONSAFEPATH=1", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
    ]  # fmt: skip
    (srun,) = [line for line in text if line.startswith("srun ")]
    assert "--kill-on-bad-exit=0" in srun and "gpus-per-task" not in "\n".join(text)


def test_a_usr2_that_comes_before_a_task_listens_waits_for_its_handler() -> None:
    task = shlex.split(submitter(settings(), SHAPE, Path("/shared/slurm"))._submitit_command_str)
    early = (
        "import os, signal; os.kill(os.getpid(), signal.SIGUSR2); from dflash_exp.stop import StopSignals\n"
        "with StopSignals() as stop: print(stop.requested)"
    )
    ended = subprocess.run([*task[: task.index("-u")], "-c", early], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "SIGUSR2\n"), ended.stderr


def test_what_sbatch_knows_and_no_key_of_ours_does_goes_through() -> None:
    others = ["+hydra.launcher.sbatch.reservation=mine", "+hydra.launcher.sbatch.exclusive=null"]
    text = lines(settings(*others, "hydra.launcher.max_requeues=0"))
    assert (
        "#SBATCH --reservation=mine" in text
        and "#SBATCH --exclusive" in text
        and "#SBATCH --no-requeue" in text
        and "#SBATCH --requeue" not in text
    )


def test_packed_runs_share_one_task_with_the_cores_of_all() -> None:
    text = lines(settings("hydra.launcher.packed=8"), shape=replace(SHAPE, nodes=1, ranks_per_node=1))
    assert "#SBATCH --ntasks-per-node=1" in text and "#SBATCH --cpus-per-task=64" in text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hydra.launcher.packed=9", "hydra.launcher.packed must be <= gpus_per_node=8, got 9"),
        ("hydra.launcher.timeout_min=0", "hydra.launcher.timeout_min must be >= 1, got 0"),
        (
            "hydra.launcher.timeout_min=2",
            "hydra.launcher.signal_delay_s must be < 120, got 120; a job of timeout_min=2",
        ),
        ("hydra.launcher.sbatch=[a]", "hydra.launcher.sbatch"),
        ("hydra.launcher.timeout_min=1h", "hydra.launcher.timeout_min must be a whole number, got '1h'"),
        ("hydra.launcher.max_gpu_hours=-1", "hydra.launcher.max_gpu_hours must be > 0, got -1.0; null"),
        ("+hydra.launcher.sbatch.time=60", "hydra.launcher.sbatch must be a long option of sbatch's that is not set"),
        ("+hydra.launcher.sbatch.Mine=1", "write it without dashes in front"),
        ("hydra.launcher.partitoin=x", "did you mean `hydra.launcher.partition`?"),
        ("hydra/launcher=slurm_9gpu", "did you mean `slurm_8gpu`?"),
    ],
)
def test_a_bad_setting_is_one_line(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(override)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_launcher_that_knows_nothing_of_runs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hydra/launcher must be basic, debug, local or one of slurm's, got x\.Y"):
        compose_jobs(["hydra.launcher._target_=x.Y"])


def test_a_site_s_own_values_win_over_ours_and_lose_to_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dflash-exp" / "site").mkdir(parents=True)
    (tmp_path / "dflash-exp" / "site" / "slurm.yaml").write_text("account: ours\npartition: h100\ncpus_per_task: 12\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    launcher = settings("hydra.launcher.partition=debug")
    assert (launcher.account, launcher.partition, launcher.cpus_per_task) == ("ours", "debug", 12)
    assert launcher.gpus_per_node == 8
