"""The real client against the loopback server: a comparison that is read from W&B alone."""

import json
from pathlib import Path

import pytest

from dflash_exp.cli import main
from dflash_exp.compare.report import Asked, report_of
from dflash_exp.comparison import Options, question_of
from dflash_exp.gathered import gather
from dflash_exp.telemetry.wandb_account import WandbTrouble
from dflash_exp.telemetry.wandb_runs import read_group
from tests.compare.sweeps import Job, noisy, write_jobs
from tests.telemetry.fake_wandb_api import FakeWandbApi
from tests.telemetry.mirrored_sweep import mirror
from tests.telemetry.wandb_sessions import files_with_the_key

LOSSES = {"shuffle": noisy(3, 0.02, 3, 1), "stride_jitter": noisy(2.8, 0.02, 3, 2)}
PLACED = {"telemetry.wandb.project": "dflash", "telemetry.wandb.entity": None}


def test_from_w_and_b_alone_the_comparison_is_that_of_the_files(
    wandb_api: FakeWandbApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [
        Job(arm, seed, loss, config=PLACED, tau=2 + seed / 10, n_records=20)
        for arm, own in LOSSES.items()
        for seed, loss in enumerate(own)
    ]
    sweep_dir = write_jobs(tmp_path / "test", jobs)
    mirror(sweep_dir)
    own = gather(sweep_dir)
    question, frozen = question_of([own], Options(None, None, None))
    files = json.loads(json.dumps(report_of(own.runs, question, Asked("test", frozen, [""])).document))
    assert main(["compare", "wandb:me/dflash/test", "--out", str(tmp_path / "out")]) == 0
    mirrored = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert mirrored["contrasts"][0]["verdict"] == "better" and mirrored["hashes"]["known"]
    for part in ("analysis", "arms", "contrasts", "noise_floor", "placebo", "hashes"):
        assert mirrored[part] == files[part], part
    said = capsys.readouterr().out
    assert "at every seed all arms share trained batches, anchors, first weights and probe" in said
    assert len(mirrored["warnings"]) == 1 and "read from wandb:me/dflash/test and not from files" in said
    assert set(wandb_api.unknown) <= {"OrganizationCoreWeaveOrganizationID"}
    assert files_with_the_key(tmp_path) == []


def test_a_group_without_runs_is_said(wandb_api: FakeWandbApi) -> None:
    with pytest.raises(WandbTrouble, match="no run of a group other in me/dflash"):
        read_group("me", "dflash", "other")
    assert wandb_api.runs == {}


def test_without_a_key_nobody_is_asked_and_nothing_is_read(
    wandb_api: FakeWandbApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    with pytest.raises(WandbTrouble, match=r"^no key; `wandb login` stores one$"):
        read_group("me", "dflash", "test")
    assert wandb_api.n_requests == 0
