"""Sessions of a run that is mirrored in W&B, as the run itself would lead them."""

import json
import os
from pathlib import Path

import pytest
import wandb

from dflash_exp.messages import StepRecord
from dflash_exp.telemetry.mirror import RunLabels, Wandb, WandbArtifacts, WandbMode
from dflash_exp.telemetry.wandb_client import Limits
from dflash_exp.telemetry.wandb_sink import WandbSink, open_wandb
from tests.telemetry.fake_wandb import KEY

ID = "tiny-shuffle-s3-0123abcd"
OPTIONS = Wandb(WandbMode.auto, None, "dflash", None, None, ["mine"], None, WandbArtifacts.none, False)
LABELS = RunLabels(ID, "tiny-shuffle s3", "sweep", "train", ["shuffle", "t" * 99], {"interleave": {"seed": 3}})
PATIENT, HASTY = Limits(init_s=20, finish_s=20), Limits(init_s=1.5, finish_s=1.5)
MARK = "train/marked_loss"
"""A metric that nothing else in a file is called."""


def forget(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No settings, no key: what the machine knows of W&B is out of sight."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # ours to restore: the sink sets it where it is missing


def meet(url: str, monkeypatch: pytest.MonkeyPatch, key: str = KEY) -> None:
    """From now on that is the server, and this is the key."""
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setenv("WANDB_API_KEY", key)


def opened(run_dir: Path, said: list[str], options: Wandb = OPTIONS, limits: Limits = PATIENT) -> WandbSink:
    """A sink whose lines go to `said`."""
    sink = open_wandb(options, LABELS, run_dir, said.append, limits)
    assert sink is not None
    return sink


def session(run_dir: Path, losses: dict[int, float], said: list[str], limits: Limits = PATIENT) -> None:
    """A process of a run, from its first record to its end; the client writes its last lines when it is torn down."""
    sink = opened(run_dir, said, limits=limits)
    with (run_dir / "metrics.jsonl").open("a") as file:
        for step, loss in losses.items():
            metrics = {"train/loss": loss, MARK: loss, "train/clipped": step == 1, "batch/buckets": [5]}
            file.write(json.dumps({"step": step, **metrics}) + "\n")
            sink.write(StepRecord(step, step / 4, metrics))
    sink.close("finished")
    wandb.teardown()


def offline_files(run_dir: Path) -> list[Path]:
    """One for each session that was offline."""
    return sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb"))


def files_with_the_key(folder: Path) -> list[Path]:
    """There should be none."""
    return [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
