"""What a run has to say of its drafter -> README.md of an export, the model card.

In: the run's configuration and its files, those that are there. Out: Markdown. A figure stands there only if it is of
the weights that are exported, and what was not done is said: not decoded, stopped early, never served by an engine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dflash_exp.config import Config, identity, plain
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.plan.interleave import option_name

TRAINED_BY = ("data", "buckets", "batches", "interleave", "target", "drafter", "loss", "optim")
"""The groups that say what was computed."""


@dataclass(frozen=True)
class Subject:
    """What the card is about."""

    config: Config
    run_dir: Path
    shape: DrafterShape
    checkpoint: str
    step: int
    n_parameters: int


def model_card(subject: Subject) -> str:
    """The text of README.md."""
    parts = [_head(subject), _use(subject), _figures(subject), _training(subject), _data(subject), _settings(subject)]
    return "\n\n".join(parts) + "\n"


def _head(subject: Subject) -> str:
    shape, path = subject.shape, subject.config.target.path
    base = [f"base_model: {path}"] if path.count("/") == 1 and not Path(path).exists() else []  # an id of the hub
    front = ["---", *base, "tags:", "- dflash", "- speculative-decoding", "---", ""]
    entries = [tap + 1 for tap in shape.target_layer_ids]
    drafted, taps = shape.block_size - 1, list(shape.target_layer_ids)
    return "\n".join(front) + (
        f"# {subject.config.name}: a DFlash drafter for {_named(path)}\n\n"
        f"It proposes the {drafted} tokens that follow one, in one forward; the target checks them in one of its own "
        f"(arXiv:2602.06036). {shape.n_layers} layer(s), {subject.n_parameters:,} parameters in fp32, without "
        "embedding and head, which are the target's.\n\n"
        f"It taps layers {taps} of the target's {shape.n_target_layers}, counted from 0: entries {entries} of "
        f"`hidden_states`, where entry 0 is the embedding's output. Its mask token is id {shape.mask_token_id}. "
        "It drafts for this target alone."
    )


def _named(path: str) -> str:
    return "the language model that ships with dflash-exp" if path == "embedded" else path


def _use(subject: Subject) -> str:
    path, size = subject.config.target.path, subject.shape.block_size
    speculative = json.dumps({"method": "dflash", "model": "DRAFTER", "num_speculative_tokens": size - 1})
    return (
        f"## Use\n\nDRAFTER is this folder, TARGET {_named(path)}. vLLM, then SGLang:\n\n```\n"
        f"vllm serve TARGET --speculative-config '{speculative}'\n\n"
        "python -m sglang.launch_server --model-path TARGET --speculative-algorithm DFLASH \\\n"
        f"  --speculative-draft-model-path DRAFTER --speculative-num-draft-tokens {size}\n```\n\n"
        "The folder was read back and its drafter compared with the trained one, bit for bit. No engine has served it."
    )


def _figures(subject: Subject) -> str:
    rows = [
        (path.name, told)
        for path in sorted(subject.run_dir.glob("evaluation*.json"))
        if (told := _read(path)).get("checkpoint") == subject.checkpoint
    ]
    if not rows:
        return f"## Figures\n\nNothing was decoded with these weights (`{subject.checkpoint}`): their τ is not known."
    lines = [
        "## Figures\n",
        "τ is tokens per verify step, decoded for real; a text loops when fewer than half of its 3-grams are distinct.",
        "Rates are those of the machine that decoded, in a plain loop over transformers, not in an engine. *Lossless*",
        "counts texts equal to the target's own decoding, token for token.\n",
        "| file | prompts | tokens | T | τ | τ, mean of prompts | τ, not looping | speed-up | lossless |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, told in rows:
        on = told.get("thinking_on")
        lines += [_row(name, told)] if on is None else [_row(f"{name}, thinking off", told), _row(f"{name}, on", on)]
    return "\n".join(lines)


def _row(name: str, told: Mapping[str, Any]) -> str:
    figures = [told["tau_pooled"], told["tau_macro"], told["not_looping"]["tau_pooled"], told["speedup"]]
    shown = [str(told["prompts"]), f"{told['tokens']:,}", f"{told['temperature']:g}", *map(_figure, figures)]
    return f"| {' | '.join([name, *shown, told['lossless']])} |"


def _training(subject: Subject) -> str:
    config, result = subject.config, _read(subject.run_dir / "result.json")
    lines = ["## Training\n", f"- run `{identity(config)}`, at its optimizer step {subject.step:,}"]
    if not result:
        return "\n".join([*lines, "- the run had not ended"])
    lines[-1] += f"; it {result['status']} after step {result['steps']:,}, {result['tokens']:,} tokens"
    if result["steps"] == subject.step:
        before, after = ((result[when] or {}).get("probe/loss") for when in ("first_probe", "final_probe"))
        lines.append(f"- held-out loss {_figure(before)} before training, {_figure(after)} after it")
    return "\n".join(lines)


def _data(subject: Subject) -> str:
    plan = _read(subject.run_dir / "plan.json")
    counts, order = plan["counts"], option_name(subject.config.interleave)
    return (
        f"## Data\n\n{plan['sequences']:,} conversations, {plan['tokens']:,} tokens an epoch, in {sum(counts):,} "
        f"batches of {len(counts)} length buckets, up to {_listed(plan['edges'])} tokens. "
        f"{plan['padding_share']:.1%} of what they hold is padding. The order is `{order}`, the plan "
        f"{plan['plan_sha256'][:16]}."
    )


def _settings(subject: Subject) -> str:
    values = plain(subject.config)
    shown = {name: values[name] for name in ("seeds", "epochs", "steps", "tokens", "batches_per_step")}
    shown |= {name: values[name] for name in TRAINED_BY}
    return f"## Configuration\n\n```yaml\n{yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)}```"


def _read(path: Path) -> dict[str, Any]:
    """A file of the run; nothing where it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
