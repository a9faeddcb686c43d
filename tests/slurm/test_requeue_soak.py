"""One job, told to stop again and again by Slurm: nothing is lost and nothing is trained twice.

A cycle takes 10 to 20 seconds, most of them imports and Slurm's wait before a job that was requeued:
`REQUEUE_CYCLES=100 python -m pytest tests/slurm/test_requeue_soak.py`.
"""

import os

import pytest

from dflash_exp.submitted import jobs_of
from dflash_exp.telemetry.sinks import read_records
from tests.slurm.conftest import Cluster, control, until, word
from tests.world import result_of, results_only

CYCLES = int(os.environ.get("REQUEUE_CYCLES", "0"))
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(CYCLES == 0, reason="REQUEUE_CYCLES says how many, 100 are usual")]


def test_a_job_requeued_many_times_trains_every_step_once(cluster: Cluster) -> None:
    run_dir, length = cluster.folder / "soak", [f"epochs={2 * CYCLES}", "probe.every_steps=0", "probe.prompts=0"]
    often = ["hydra/launcher=slurm", f"hydra.launcher.max_requeues={CYCLES + 1}", "checkpoint.every_steps=7"]
    cluster.train(*length, *often, f"run_dir={run_dir}", step_s=0.1)
    job, steps = str(jobs_of(run_dir)[0].job_id), [0]
    for cycle in range(CYCLES):
        cluster.has_trained(run_dir, steps[-1] + 1)
        control("scancel", "--signal=USR2", job)
        until(lambda: word(run_dir) == "queued", f"requeue {cycle}")
        steps.append(len(read_records(run_dir / "metrics.jsonl")))
        assert steps[-1] > steps[-2]
    assert cluster.has_ended(run_dir) == "finished"
    whole = cluster.world.train("whole", *length, "evaluate=false")
    assert results_only(run_dir) == results_only(whole) and result_of(run_dir)["restarts"] == CYCLES
    hashes = [name for name in result_of(whole) if name.endswith("sha256")]
    assert {name: result_of(run_dir)[name] for name in hashes} == {name: result_of(whole)[name] for name in hashes}
    assert not list(run_dir.glob("metrics.discarded-*"))
