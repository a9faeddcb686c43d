"""A real model from the GGUF file it is published as to a drafter that decodes, by the verbs that anybody types."""

import json
from pathlib import Path

import pytest

from dflash_exp.cli import main
from dflash_exp.telemetry.sinks import read_records
from tests.smollm2 import missing, save_target, write_conversations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}, see tests/smollm2.py"),
]


def test_smollm2_writes_its_conversations_trains_a_drafter_and_decodes_with_it(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    write_conversations(tmp_path / "human.jsonl", 24)
    target = ["target=smollm2_135m", f"target.path={tmp_path / 'target'}", "target.dtype=float32"]

    made = [f"regenerate.source={tmp_path / 'human.jsonl'}", f"regenerate.out={tmp_path / 'own'}"]
    assert main(["regenerate", *target, *made, "regenerate.max_tokens=24"]) == 0
    own = tmp_path / "own" / "conversations.jsonl"
    assert json.loads((tmp_path / "own" / "report.json").read_text())["kept"] == 24

    store = tmp_path / "store"
    shares = ["prepare.probe_share=0.2", "prepare.prompts_share=0.2", "prepare.workers=1"]
    assert main(["prepare", *target, f"prepare.source={own}", f"prepare.out={store}", *shares]) == 0
    assert json.loads((store / "report.json").read_text())["fates"]["kept"] == 24

    size = ["drafter.n_layers=1", "drafter.taps=null", "drafter.anchors=4", "batches.budget_tokens=768"]
    length = ["steps=12", "probe.every_steps=6", "probe.prompts=2", "prompts.limit=3", "prompts.max_new_tokens=16"]
    run = tmp_path / "run"
    data = ["data=store", f"data.path={store}", "telemetry.wandb.mode='off'", f"run_dir={run}"]
    assert main(["train", *target, *data, *size, *length]) == 0
    losses = [record["train/loss"] for record in read_records(run / "metrics.jsonl")]
    assert len(losses) == 12 and sum(losses[-3:]) < 0.5 * sum(losses[:3])
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["lossless"] == "3/3" and evaluation["tau_pooled"] >= 1
