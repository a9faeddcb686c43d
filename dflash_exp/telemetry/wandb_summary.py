"""What a W&B run's summary says at the run's end: metrics' extremes, the result, how it decodes.

In: the run directory. Out: a dictionary by `result`, `evaluation` and the metrics' names. It is made from files and
not by the client, which begins anew when a run resumes. `result` and `evaluation` hold what a comparison reads, in the
words of result.json and evaluation.json, so that one can be made from W&B alone.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_exp.telemetry.sinks import read_records

EXTREMES = {
    "train/loss": "min",
    "train/grad_norm": "max",
    "probe/loss": "min",
    "probe/tau_teacher_forced": "max",
    "probe/tau_replayed": "max",
}
"""What the summary says of a metric beside its last value."""
RESULT = (
    "status", "steps", "epochs", "tokens", "restarts", "skipped_steps", "train_s", "trained_batches_sha256",
    "trained_order_sha256", "anchors_sha256", "init_sha256", "probe_sha256",
)  # fmt: skip
"""Fields of result.json; of `dynamics` and `error` it has a part."""
DYNAMICS = ("composition_share", "composition_share_permuted", "in_words", "whiplash", "conflict")
EVALUATION = (
    "tau_pooled", "tau_macro", "accepted_at", "speedup", "plain_tokens_per_s", "dflash_tokens_per_s", "lossless",
    "prompts", "tokens", "temperature", "checkpoint",
)  # fmt: skip
"""Fields of evaluation.json; of each prompt it has what τ is made of."""
PROMPT = ("emitted", "verify_steps")


def summary_there(run_dir: Path) -> dict[str, Any]:
    """Of a run at its end, as far as the files are there."""
    records = run_dir / "metrics.jsonl"
    extremes = extremes_of(read_records(records)) if records.is_file() else {}
    result, evaluation = _object(run_dir / "result.json"), _object(run_dir / "evaluation.json")
    parts = {"result": result_of(result), "evaluation": evaluation_of(evaluation)}
    return {**extremes, **{name: part for name, part in parts.items() if part}}


def extremes_of(records: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    """Extreme and last value of each metric of `EXTREMES` that has one, as the client's summary holds them."""
    found = {}
    for name, extreme in EXTREMES.items():
        values = [value for record in records if (value := record.get(name)) is not None]
        if values:
            found[name] = {extreme: min(values) if extreme == "min" else max(values), "last": values[-1]}
    return found


def result_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of result.json; of an error its last line."""
    found = _of(result, RESULT)
    if result.get("dynamics"):
        found["dynamics"] = _of(result["dynamics"], DYNAMICS)
    if result.get("error"):
        found["error"] = result["error"].strip().splitlines()[-1]
    return found


def evaluation_of(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Of evaluation.json."""
    found = _of(evaluation, EVALUATION)
    if evaluation.get("per_prompt"):
        found["per_prompt"] = [_of(row, PROMPT) for row in evaluation["per_prompt"]]
    return found


def _of(held: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: held[name] for name in names if name in held}


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
