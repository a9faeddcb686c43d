"""What is submitted to a real Slurm is what runs, comes back when it is interrupted, and ends as if it had not been."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_exp.cli import main
from dflash_exp.submitted import jobs_of
from tests.slurm.conftest import Cluster, control, until, word
from tests.world import result_of, results_only

pytestmark = pytest.mark.slurm


def ranks_of(run_dir: Path) -> list[dict[str, Any]]:
    return json.loads((run_dir / "environment.json").read_text())["ranks"]


def said_in(run_dir: Path) -> str:
    """By the first rank, in all its jobs."""
    return "".join(path.read_text() for path in sorted((run_dir / "logs").glob("slurm-*-0.out")))


def kill(run_dir: Path) -> None:
    os.kill(int((run_dir / ".lock").read_text().split()[1]), signal.SIGKILL)


def test_a_sweep_is_one_array_of_what_was_composed_and_a_failing_job_leaves_the_others_alone(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_dir, own = cluster.folder / "sweep", cluster.folder / "conf" / "batches"
    own.mkdir(parents=True)
    option = (
        "_target_: dflash_exp.plan.batches.TokenBudget\nbudget_tokens: {}\npool: 8\nmax_sequences: null\nfrozen: false"
    )
    (own / "mine.yaml").write_text(option.format(96))
    asked = ["-m", f"--config-dir={own.parent}", "batches=mine", "optim.lr=0.01,1e30", "seed=0,1", "epochs=2"]
    two_ranks = ["topology.ranks_per_node=2", "hydra/launcher=slurm_8gpu", "+hydra.launcher.sbatch.begin=now+2seconds"]
    cluster.train(*asked, *two_ranks, f"hydra.sweep.dir={sweep_dir}")
    (own / "mine.yaml").write_text(option.format(1))
    jobs = json.loads((sweep_dir / "sweep.json").read_text())["jobs"]
    assert len({job["job_id"].partition("_")[0] for job in jobs}) == 1
    assert {job["job_id"].partition("_")[2] for job in jobs} == set("0123")
    capsys.readouterr()
    assert main(["status", str(sweep_dir)]) == 0
    assert "4 runs: 4 queued" in capsys.readouterr().out
    ends = {job["run_dir"]: cluster.has_ended(sweep_dir / job["run_dir"]) for job in jobs}
    for job in jobs:
        run_dir, fails = sweep_dir / job["run_dir"], "optim.lr=1e+30" in job["overrides"]
        assert ends[job["run_dir"]] == ("failed" if fails else "finished"), said_in(run_dir)
        config = yaml.safe_load((run_dir / "config.yaml").read_text())
        assert config["batches"]["budget_tokens"] == 96 and len(ranks_of(run_dir)) == 2
    main(["status", str(sweep_dir)])
    out = capsys.readouterr().out
    assert "2 finished" in out and "2 failed" in out and "FloatingPointError" in out


def test_a_run_interrupted_in_every_way_ends_as_if_it_had_not_been(cluster: Cluster) -> None:
    run_dir = cluster.folder / "interrupted"
    length = ["epochs=9", "checkpoint.every_steps=4"]
    cluster.train(*length, f"run_dir={run_dir}", "hydra/launcher=slurm", step_s=0.25)
    job = str(jobs_of(run_dir)[0].job_id)

    cluster.has_trained(run_dir, 3)
    control("scancel", "--signal=USR2", job)
    until(lambda: word(run_dir) == "queued", "the requeue")

    cluster.has_trained(run_dir, 9)
    preempting = ("sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    control(*preempting)
    until(lambda: word(run_dir) == "queued", "the preemption")

    cluster.has_trained(run_dir, 15)
    (node,) = control("squeue", "-h", f"--jobs={job}", "-o", "%N").split()
    subprocess.run(["pkill", "-KILL", "-f", rf"slurmstepd: \[{job}\."], check=True)
    kill(run_dir)
    control("scontrol", "update", f"nodename={node}", "state=down", "reason=gone")
    until(lambda: word(run_dir) == "queued", "the requeue after a lost node")

    cluster.has_trained(run_dir, 21)
    kill(run_dir)
    assert cluster.has_ended(run_dir) == "stopped"
    assert main(["resume", str(run_dir)]) == 0
    assert cluster.has_ended(run_dir) == "finished", said_in(run_dir)

    whole = cluster.world.train("whole", *length, "evaluate=false")
    assert results_only(run_dir) == results_only(whole)
    hashes = [name for name in result_of(whole) if name.endswith("sha256")]
    assert {name: result_of(run_dir)[name] for name in hashes} == {name: result_of(whole)[name] for name in hashes}
    assert result_of(run_dir)["restarts"] == 4 and "requeued, 1 of at most 20 times" in said_in(run_dir)
    assert main(["resume", str(run_dir)]) == 0 and len(jobs_of(run_dir)) == 2


def test_a_job_out_of_time_goes_back_to_the_queue_as_often_as_it_may(cluster: Cluster) -> None:
    run_dir = cluster.folder / "timeout"
    limits = ["hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=40", "hydra.launcher.max_requeues=1"]
    cluster.train("epochs=400", f"run_dir={run_dir}", "hydra/launcher=slurm", *limits, step_s=0.5)
    assert cluster.has_ended(run_dir) == "stopped"
    said = said_in(run_dir)
    assert "requeued, 1 of at most 1 times" in said
    assert "requeued 1 times, which is hydra.launcher.max_requeues=1: not requeued" in said
    assert result_of(run_dir)["status"] == "stopped"


def test_packed_runs_have_a_gpu_each_and_a_cancelled_job_is_saved_and_resumed(cluster: Cluster) -> None:
    sweep_dir = cluster.folder / "packed"
    pack = ["hydra/launcher=slurm_8gpu", "hydra.launcher.packed=4", "hydra.launcher.gpus_per_node=4"]
    cluster.train("-m", "seed=0,1,2", "epochs=400", *pack, f"hydra.sweep.dir={sweep_dir}", step_s=0.3)
    run_dirs = [sweep_dir / job["run_dir"] for job in json.loads((sweep_dir / "sweep.json").read_text())["jobs"]]
    (job,) = {str(jobs_of(run_dir)[0].job_id) for run_dir in run_dirs}
    for run_dir in run_dirs:
        cluster.has_trained(run_dir, 2)
    assert [ranks_of(run_dir)[0]["gpus"] for run_dir in run_dirs] == [["0"], ["1"], ["2"]]
    assert main(["cancel", str(sweep_dir)]) == 0
    for run_dir in run_dirs:
        assert cluster.has_ended(run_dir) == "stopped" and result_of(run_dir)["status"] == "stopped"
    assert job not in control("squeue", "-h", "-o", "%i")
    assert main(["resume", str(run_dirs[1])]) == 0
    cluster.has_trained(run_dirs[1], result_of(run_dirs[1])["steps"] + 1)
    assert [word(run_dir) for run_dir in run_dirs] == ["stopped", "running", "stopped"]
    assert main(["cancel", str(run_dirs[1])]) == 0


def test_eight_tasks_are_eight_ranks_with_a_gpu_each(cluster: Cluster) -> None:
    run_dir = cluster.folder / "eight"
    cluster.train("steps=2", "epochs=null", "batches_per_step=8", "topology.ranks_per_node=8", f"run_dir={run_dir}",
                  "hydra/launcher=slurm_8gpu")  # fmt: skip
    assert cluster.has_ended(run_dir) == "finished", said_in(run_dir)
    assert [rank["gpus"] for rank in ranks_of(run_dir)] == [[str(gpu)] for gpu in range(8)]


def test_two_nodes_of_two_ranks_train_one_drafter(cluster: Cluster) -> None:
    run_dir = cluster.folder / "nodes"
    nodes = ["topology.nodes=2", "topology.ranks_per_node=2", "batches_per_step=4", "hydra/launcher=slurm"]
    cluster.train("steps=2", "epochs=null", *nodes, f"run_dir={run_dir}")
    assert cluster.has_ended(run_dir) == "finished", said_in(run_dir)
    assert [rank["node"] for rank in ranks_of(run_dir)] == ["gpu00", "gpu00", "gpu01", "gpu01"]
