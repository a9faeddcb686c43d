"""What the summary of a run in W&B says at its end."""

import json
from pathlib import Path

from dflash_exp.telemetry.wandb_summary import extremes_of, summary_there

HASHES = {"trained_batches_sha256": "b", "trained_order_sha256": "o", "anchors_sha256": "a", "init_sha256": "i"}


def test_extremes_and_last_values_are_of_the_records_that_have_them() -> None:
    records = [{"probe/loss": 3.0}, {"train/grad_norm": 2.0, "probe/loss": 1.0}, {"probe/loss": 2.0}, {}]
    assert extremes_of(records) == {
        "probe/loss": {"min": 1.0, "last": 2.0},
        "train/grad_norm": {"max": 2.0, "last": 2.0},
    }


def test_the_result_is_there_with_its_hashes_and_without_what_is_long(run_dir: Path) -> None:
    dynamics = {"composition_share": 0.5, "jumps": [{"step": 3}] * 100, "whiplash": {"contrast": 0.1}}
    result = {"status": "finished", "tokens": 9, "time_by_rank": [{}], "dynamics": dynamics, **HASHES}
    (run_dir / "result.json").write_text(json.dumps(result))
    assert summary_there(run_dir) == {
        "result": {
            "status": "finished",
            "tokens": 9,
            **HASHES,
            "dynamics": {"composition_share": 0.5, "whiplash": {"contrast": 0.1}},
        }
    }


def test_of_an_error_the_last_line_is_told(run_dir: Path) -> None:
    (run_dir / "result.json").write_text(
        json.dumps({"status": "failed", "error": "Traceback\n  line\nOSError: full\n"})
    )
    assert summary_there(run_dir) == {"result": {"status": "failed", "error": "OSError: full"}}


def test_each_prompt_is_there_with_what_tau_is_made_of(run_dir: Path) -> None:
    prompts = [{"emitted": 20, "verify_steps": 10, "plain_s": 1.0}, {"emitted": 15, "verify_steps": 10, "loops": True}]
    (run_dir / "evaluation.json").write_text(json.dumps({"tau_pooled": 1.75, "looping": {}, "per_prompt": prompts}))
    told = [{"emitted": 20, "verify_steps": 10}, {"emitted": 15, "verify_steps": 10}]
    assert summary_there(run_dir) == {"evaluation": {"tau_pooled": 1.75, "per_prompt": told}}


def test_a_run_that_has_left_nothing_has_none(run_dir: Path) -> None:
    assert summary_there(run_dir) == {}
