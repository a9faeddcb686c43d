"""What Slurm answers is read as it is, and no answer is no reason to fail."""

from pathlib import Path

import pytest

from dflash_exp.launch.queue import (
    InQueue,
    QueueSilent,
    at_the_limit,
    in_queue,
    meeting_point,
    own_job_id,
    requeue,
    with_comment,
)
from tests.launch.conftest import FakeSlurm

IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_STEP_NODELIST": "n[04-05]"}


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch, slurm: FakeSlurm) -> FakeSlurm:
    """Inside the last task of an array, which has the array's own number."""
    for name, value in IN_JOB.items():
        monkeypatch.setenv(name, value)
    slurm.answers("scontrol", "JobId=7 ArrayJobId=7 JobState=RUNNING Reason=None")
    return slurm


def test_jobs_that_have_not_ended_are_told_by_id(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", "7_0|RUNNING|gpu[04-05]\n7_1|PENDING|(Priority)\n7_2|TIMEOUT|gpu04\n8|COMPLETING|gpu06\n")
    found = in_queue(["7_0", "7_1", "7_2", "8"])
    assert found == {
        "7_0": InQueue("RUNNING", "gpu[04-05]"),
        "7_1": InQueue("PENDING", "Priority"),
        "8": InQueue("COMPLETING", "gpu06"),
    }
    assert [job.waits for job in found.values()] == [False, True, False]
    assert slurm.asked("squeue") == ["--noheader --array --jobs=7,8 --format=%i|%T|%R"]


def test_no_job_asks_nothing_and_a_job_that_slurm_has_forgotten_is_not_there(slurm: FakeSlurm) -> None:
    assert in_queue([]) == {} and slurm.asked("squeue") == []
    slurm.answers("squeue", "slurm_load_jobs error: Invalid job id specified", code=1)
    assert in_queue(["7"]) == {}


def test_a_queue_that_does_not_answer_is_not_an_empty_one(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", "Unable to contact slurm controller", code=1)
    with pytest.raises(QueueSilent, match="squeue must answer, got Unable to contact slurm controller"):
        in_queue(["7"])


def test_a_job_is_found_by_its_comment(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", "30|else|RUNNING\n31|abc|PENDING\n31|abc|PENDING\n")
    assert with_comment("abc") == "31" and with_comment("abd") is None


def test_without_slurm_nothing_is_in_its_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert in_queue(["7"]) == {}


def test_a_job_at_its_limit_says_so_and_one_that_is_not_or_is_in_no_queue_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert at_the_limit() is None
    monkeypatch.setenv("DFLASH_EXP_MAX_REQUEUES", "2")
    assert at_the_limit() is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    said = "requeued 2 times, which is hydra.launcher.max_requeues=2: only dflash-exp resume goes on"
    assert at_the_limit() == said


def test_a_task_goes_back_alone_and_not_its_whole_array(in_job: FakeSlurm) -> None:
    assert own_job_id() == "7_3"
    done = requeue(2)
    assert done.done and done.said == "requeued, 1 of at most 2 times"
    assert in_job.asked("scontrol") == ["--oneliner show job 7_3", "requeue 7_3"]


@pytest.mark.parametrize(
    ("state", "restarts", "said", "done"),
    [
        ("COMPLETING", "0", "the job ends (COMPLETING), cancelled perhaps: not requeued", False),
        ("RUNNING", "2", "requeued 2 times, which is hydra.launcher.max_requeues=2: not requeued", False),
        ("PENDING", "0", "requeued by Slurm", True),
    ],
)
def test_a_task_that_is_cancelled_or_too_old_or_back_already_is_left(
    in_job: FakeSlurm, monkeypatch: pytest.MonkeyPatch, state: str, restarts: str, said: str, done: bool
) -> None:
    in_job.answers("scontrol", f"JobId=7 JobState={state} Reason=None")
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    answer = requeue(2)
    assert answer.done is done and answer.said.startswith(said)
    assert not any(asked.startswith("requeue") for asked in in_job.asked("scontrol"))


def test_a_queue_that_does_not_take_it_back_is_quoted(in_job: FakeSlurm) -> None:
    in_job.answers("scontrol", "Requested operation is presently disabled", code=1)
    assert requeue(2).said == ("not requeued (Requested operation is presently disabled); dflash-exp resume goes on")


def test_tasks_meet_on_the_first_node_or_where_all_of_them_are(
    in_job: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_job.answers("scontrol", "n04\nn05\n")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    assert meeting_point() == ("n04", "20007")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "1")
    assert meeting_point()[0] == "127.0.0.1"
