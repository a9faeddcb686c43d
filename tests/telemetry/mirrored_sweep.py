"""A sweep of written runs, told to W&B as the runs themselves would have."""

import json
from pathlib import Path
from typing import Any

import wandb
import yaml

from dflash_exp.messages import StepRecord
from dflash_exp.mirrors import FIGURES, beside
from dflash_exp.telemetry.mirror import BESIDE, RunLabels, Wandb, WandbArtifacts, WandbMode
from dflash_exp.telemetry.wandb_sink import open_wandb
from tests.telemetry.wandb_sessions import PATIENT

OPTIONS = Wandb(WandbMode.online, "me", "dflash", None, None, [], None, WandbArtifacts.none, False)


def mirror(sweep_dir: Path, group: str = "test") -> None:
    """Every run of the sweep that has begun, to its end."""
    said: list[str] = []
    for run_dir in sorted(sweep_dir.glob("*-test-*")):
        sink = open_wandb(OPTIONS, labels(run_dir, group), run_dir, said.append, PATIENT)
        assert sink is not None
        for line in (run_dir / "metrics.jsonl").read_text().splitlines():
            fields = json.loads(line)
            sink.write(StepRecord(fields.pop("step"), fields.pop("time_s"), fields))
        sink.close(_object(run_dir / "result.json")["status"])
    wandb.teardown()
    assert all(line.startswith("W&B: http") for line in said), said


def labels(run_dir: Path, group: str) -> RunLabels:
    """With a plan and an environment that have all their fields, most of them empty."""
    config = yaml.safe_load((run_dir / "config.yaml").read_text()) | {"run_dir": f"runs/test/{run_dir.name}"}
    plan = dict.fromkeys(FIGURES) | _object(run_dir / "plan.json")
    where = {"devices": [], "packages": {}} | _object(run_dir / "environment.json")
    held = dict(zip(BESIDE, beside(run_dir, plan, where, []), strict=True))
    return RunLabels(run_dir.name.partition("-")[2], run_dir.name, group, "train", [], config | held)


def _object(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
