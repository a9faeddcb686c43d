"""The tables that a run ends with and a plan is shown as."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash_exp.telemetry.progress import duration


def print_summary(
    console: Console, run_dir: Path, result: Mapping[str, Any], evaluation: Mapping[str, Any] | None, seconds: float
) -> None:
    """What was trained, how it decodes, where everything is."""
    table = Table("", "", title="done", show_header=False, title_justify="left")
    table.add_row(
        "trained",
        f"{result['steps']} steps, {result['epochs']} epoch(s), {result['tokens']:,} tokens "
        f"in {duration(result['train_s'])}",
    )
    before, after = (_figure(result[when].get("probe/loss")) for when in ("first_probe", "final_probe"))
    table.add_row("probe loss", f"{before} before, {after} after")
    if evaluation is not None:
        for name in ("not_looping", "looping"):
            table.add_row(f"τ, {name.replace('_', ' ')}", tau_line(evaluation[name]))
        rates = " -> ".join(_figure(evaluation[f"{way}_tokens_per_s"]) for way in ("plain", "dflash"))
        table.add_row("speed-up", f"{_figure(evaluation['speedup'])} ({rates} tok/s)")
        table.add_row("lossless", f"{evaluation['lossless']} texts equal to plain greedy decoding")
    table.add_row("run", str(run_dir))
    table.add_row("took", duration(seconds))
    console.print(table)


def print_evaluation(console: Console, evaluation: Mapping[str, Any]) -> None:
    """evaluation.json as a table: all prompts, and the two kinds apart."""
    table = Table("prompts", "n", "τ pooled", "τ macro", "speed-up", "plain tok/s", "dflash tok/s", "lossless")
    for name, part in (
        ("all", evaluation),
        ("not looping", evaluation["not_looping"]),
        ("looping", evaluation["looping"]),
    ):
        figures = (
            part["tau_pooled"],
            part["tau_macro"],
            part["speedup"],
            part["plain_tokens_per_s"],
            part["dflash_tokens_per_s"],
        )
        table.add_row(name, str(part["prompts"]), *map(_figure, figures), part["lossless"])
    console.print(table)
    shares = evaluation["accepted_at"]
    if shares:
        console.print(
            "accepted at slot: " + "  ".join(f"{k}: {share:.2f}" for k, share in enumerate(shares, start=1)),
            highlight=False,
        )


def print_plan(console: Console, document: Mapping[str, Any]) -> None:
    """plan.json as tables: one row a bucket, then the figures of the order."""
    table = Table(
        "bucket", "to tokens", "batches", "exhausted at", "picked, first 10 %", "weight: epoch", "step", "batch"
    )
    weights = document["anchor_weight"]
    for b, count in enumerate(document["counts"]):
        edge = "" if document["edges"] is None else str(document["edges"][b])
        shares = [_figure(weights[kind][b]) if weights else "-" for kind in ("epoch", "step", "batch")]
        table.add_row(
            str(b),
            edge,
            str(count),
            _figure(document["exhausted_at"][b]),
            _figure(document["pick_rate"]["first_10pct"][b]),
            *shares,
        )
    console.print(table)
    window = document["window_tv"]
    console.print(
        f"{document['strategy']}: longest run {document['max_run']}, mean run {document['mean_run']:.2f}, "
        f"largest deviation {document['max_prefix_deviation']:.2f} batches, mix of 100 batches off by "
        f"{'-' if window is None else _figure(window['mean'])}, {document['steps_per_epoch']} steps an epoch",
        highlight=False,
    )


def print_loss_from(console: Console, document: Mapping[str, Any]) -> None:
    """What a step of this order costs with nothing learned, where plan.json says it."""
    source = document["loss_from"]
    if source is None:
        return
    console.print(
        f"loss with nothing learned ({source['run']}, {source['checkpoint']}): mean {source['mean']:.3f}, "
        f"SD of a step {source['curve_sd']:.3f} ({source['curve_sd_within']:.3f} within the buckets), "
        f"of the running median {source['median_sd']:.4f}, {source['jumps']} jumps; "
        f"by bucket {', '.join(map(_figure, source['per_bucket_mean']))}",
        highlight=False,
    )


def print_plans(console: Console, documents: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Several plans side by side, one row a plan.json, the longest runs last; nothing for none."""
    if not documents:
        return
    table = Table(title="side by side", title_justify="left")
    table.add_column("plan", no_wrap=True)
    headings = ["longest run", "mean run", "deviation", "first out at", "TV of 100 batches", "TV of a step"]
    with_loss = any(document["loss_from"] is not None for _, document in documents)
    for heading in [*headings, "SD of loss", "of its median"] if with_loss else headings:
        table.add_column(heading, justify="right")
    for name, document in sorted(documents, key=lambda named: (named[1]["max_run"], named[1]["max_prefix_deviation"])):
        window = document["window_tv"]
        table.add_row(
            Text(name.removeprefix("interleave=")),
            f"{document['max_run']:,}",
            f"{document['mean_run']:.2f}",
            f"{document['max_prefix_deviation']:,.2f}",
            f"{100 * min(share for share in document['exhausted_at'] if share is not None):.2f} %",
            "-" if window is None else f"{window['mean']:.4f}",
            f"{document['step_mix_tv']['mean']:.4f}",
            *(_loss_sds(document["loss_from"]) if with_loss else ()),
        )
    console.print(table)


def _loss_sds(source: Mapping[str, Any] | None) -> tuple[str, str]:
    return ("-", "-") if source is None else (f"{source['curve_sd']:.3f}", f"{source['median_sd']:.4f}")


def tau_line(part: Mapping[str, Any]) -> str:
    """τ of one kind of prompts."""
    pooled, macro, speedup = (_figure(part[name]) for name in ("tau_pooled", "tau_macro", "speedup"))
    return f"{pooled} (macro {macro}) over {part['prompts']} prompts, speed-up {speedup}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
