"""The tables that a run ends with and a plan is shown as."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash_exp.doctor.words import doctor_lines
from dflash_exp.paper import SOURCE, Reported
from dflash_exp.telemetry.duration import duration

UNKNOWN_COST = "cost and memory are not known: the target's config.json is not on this machine"


def print_summary(
    console: Console, run_dir: Path, result: Mapping[str, Any], evaluation: Mapping[str, Any] | None, seconds: float
) -> None:
    """What was trained, how it decodes, where everything is; then what the doctor found."""
    table = Table("", "", title="done", show_header=False, title_justify="left")
    table.add_row(
        "trained",
        f"{result['steps']} steps, {result['epochs']} epoch(s), {result['tokens']:,} tokens "
        f"in {duration(result['train_s'])}",
    )
    table.add_row("time", "\n".join(time_lines(result["time"], result["time_by_rank"])))
    if result["target_cache_by_rank"][0] is not None:
        table.add_row("target cache", cache_line(result["target_cache_by_rank"]))
    before, after = (_figure(result[when].get("probe/loss")) for when in ("first_probe", "final_probe"))
    table.add_row("probe loss", f"{before} before, {after} after")
    table.add_row("jumps", result["dynamics"]["in_words"])
    if result["dynamics"]["composition_share"] is not None:
        table.add_row("composition", composition_line(result["dynamics"]))
    if evaluation is not None:
        for name in ("not_looping", "looping"):
            table.add_row(f"τ, {name.replace('_', ' ')}", tau_line(evaluation[name]))
        rates = " -> ".join(_figure(evaluation[f"{way}_tokens_per_s"]) for way in ("plain", "dflash"))
        table.add_row("speed-up", f"{_figure(evaluation['speedup'])} ({rates} tok/s)")
        table.add_row("lossless", f"{evaluation['lossless']} texts equal to plain greedy decoding")
    table.add_row("run", str(run_dir))
    table.add_row("took", duration(seconds))
    console.print(table)
    for line in doctor_lines(None if evaluation is None else evaluation.get("doctor")):
        console.print(line, highlight=False, markup=False)


def print_evaluation(console: Console, evaluation: Mapping[str, Any], paper: Reported | None) -> None:
    """evaluation.json as a table: all prompts and the two kinds apart, once for each setting of thinking; below a line,
    the paper's figures where there are some."""
    table = Table("prompts", "n", "τ pooled", "τ macro", "speed-up", "plain tok/s", "dflash tok/s", "lossless")
    names = ("tau_pooled", "tau_macro", "speedup", "plain_tokens_per_s", "dflash_tokens_per_s")
    on = evaluation.get("thinking_on")
    settings = [("", evaluation)] if on is None else [("thinking off: ", evaluation), ("thinking on: ", on)]
    for setting, told in settings:
        for kind, part in (("all", told), ("not looping", told["not_looping"]), ("looping", told["looping"])):
            figures = [_figure(part[name]) for name in names]
            table.add_row(f"{setting}{kind}", str(part["prompts"]), *figures, part["lossless"] or "-")
    if paper is not None:
        table.add_section()
        table.add_row(f"the paper's {paper.benchmark}", "-", "-", _figure(paper.tau_macro), _figure(paper.speedup))
    console.print(table)
    if paper is not None:
        console.print(f"the paper's: {SOURCE}", highlight=False, soft_wrap=True)
    for setting, told in settings:
        shares = "  ".join(f"{k}: {share:.2f}" for k, share in enumerate(told["accepted_at"] or (), start=1))
        if shares:
            console.print(f"{setting}accepted at slot: {shares}", highlight=False)
        for line in doctor_lines(told.get("doctor")):
            console.print(f"{setting}{line}", highlight=False, markup=False)


def print_plan(console: Console, document: Mapping[str, Any]) -> None:
    """plan.json as two tables, one row a bucket: what is in it and what it costs, what the order does to it; then the
    figures of the whole epoch."""
    if document["per_bucket"] is not None:
        console.print(_contents_table(document))
        console.print(_costs_line(document["cost"]), highlight=False)
    console.print(_order_table(document))
    console.print("weight of a token under each loss.reduction, share of the learning rate: 1 is fair", highlight=False)
    for line in [_order_line(document), *_step_lines(document), *_cost_lines(document)]:
        console.print(line, highlight=False)


def _contents_table(document: Mapping[str, Any]) -> Table:
    """What the buckets hold, and what a batch of each costs target and drafter."""
    cost, held = document["cost"], document["per_bucket"]
    scale = 1.0 if cost is None else _unit(cost)[1]
    headings = ("bucket", "to", "sequences", "tokens", "anchors", "batches", "padding", "target", "drafter")
    table = _narrow_table("in the buckets", headings)
    for b, count in enumerate(document["counts"]):
        numbers = [_count(held[name], b) for name in ("sequences", "tokens", "anchors")]
        padded = held["padded_tokens"][b]
        padding = f"{100 * (1 - held['tokens'][b] / padded):.1f} %" if padded else "-"
        each = [None if cost is None else cost[stage][b] for stage in ("target", "drafter")]
        costs = ["-" if value is None else f"{value / scale:,.1f}" for value in each]
        table.add_row(str(b), f"{document['edges'][b]:,}", *numbers, f"{count:,}", padding, *costs)
    return table


def _costs_line(cost: Mapping[str, Any] | None) -> str:
    """What target and drafter are in."""
    return UNKNOWN_COST if cost is None else f"target, drafter: mean {_unit(cost)[0]} of a batch, {cost['basis']}"


def _unit(cost: Mapping[str, Any]) -> tuple[str, float]:
    """Its name, and how many of the cost's own it is."""
    return _readable(cost["unit"], [*cost["target"], *cost["drafter"]])


def _narrow_table(title: str, headings: Sequence[str]) -> Table:
    """Nine columns of five digits fit into 80; in fewer, numbers are folded, not cut."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _order_table(document: Mapping[str, Any]) -> Table:
    """What the order does to each bucket."""
    headings = ("bucket", "batches", "out at", "first 10 %", "weight: epoch", "step", "batch", "lr")
    table = _narrow_table("in the order", headings)
    weights, lr_share = document["anchor_weight"], document["lr_share"]
    for b, count in enumerate(document["counts"]):
        figures = [document["exhausted_at"][b], document["pick_rate"]["first_10pct"][b]]
        figures += [weights[kind][b] if weights else None for kind in ("epoch", "step", "batch")]
        figures.append(lr_share[b] if lr_share else None)
        table.add_row(str(b), f"{count:,}", *map(_figure, figures))
    return table


def _order_line(document: Mapping[str, Any]) -> str:
    window = document["window_tv"]
    return (
        f"{document['strategy']}: longest run {document['max_run']}, mean run {document['mean_run']:.2f}, "
        f"largest deviation {document['max_prefix_deviation']:.2f} batches, mix of 100 batches off by "
        f"{'-' if window is None else _figure(window['mean'])}, {document['steps_per_epoch']} steps an epoch"
    )


def _step_lines(document: Mapping[str, Any]) -> list[str]:
    """How large a step is, as far as it is known."""
    weight, peak_lr = document["weight_per_step"], document["peak_lr"]
    if weight is None:
        return []
    return [f"a step weighs {weight:,.1f} on average, the learning rate peaks at {peak_lr:.4g}"]


def _cost_lines(document: Mapping[str, Any]) -> list[str]:
    """Bottleneck, evenness, memory and hours, as far as they are known."""
    lines = []
    cost, memory, hours = document["cost"], document["memory_bytes"], document["hours"]
    if cost is not None:
        of_epoch = {stage: _over_the_epoch(cost[stage], document["counts"]) for stage in ("target", "drafter")}
        share = of_epoch[cost["bottleneck"]] / sum(of_epoch.values())
        waiting = 1 - document["sync_efficiency"]
        waits = f"; ranks wait for one another {100 * waiting:.1f} % of its time" if waiting > 0 else ""
        lines.append(f"the bottleneck is the {cost['bottleneck']}: {100 * share:.0f} % of what an epoch costs{waits}")
    if memory is not None:
        terms = {name: n for name, n in memory.items() if name not in ("total", "largest_device")}
        parts = ", ".join(f"{name.replace('_', ' ')} {size_text(n)}" for name, n in terms.items())
        lines.append(f"memory of a rank at its peak, predicted: {size_text(memory['total'])} ({parts})")
        if memory["largest_device"] < memory["total"]:
            lines[-1] += f", {size_text(memory['largest_device'])} on its fullest device"
    if hours is not None:
        lines.append(
            f"the run takes {duration(3600 * hours['run'])}, an epoch {duration(3600 * hours['epoch'])}, at "
            f"{hours['tokens_per_s']:,.0f} tokens/s: {hours['basis']}"
        )
    return lines


def _over_the_epoch(of_a_batch: Sequence[float | None], counts: Sequence[int]) -> float:
    return sum((value or 0.0) * count for value, count in zip(of_a_batch, counts, strict=True))


def _readable(unit: str, values: Sequence[float | None]) -> tuple[str, float]:
    """A unit in which the largest of the values is 1 or more, and how many of the old one it is."""
    most = max(value or 0.0 for value in values)
    steps = {"FLOP": [("GFLOP", 1e9), ("TFLOP", 1e12)], "s": [("ms", 1e-3), ("s", 1.0)]}[unit]
    return next((step for step in reversed(steps) if most >= 10 * step[1]), steps[0])


def size_text(n_bytes: int) -> str:
    """Bytes in MB, or in GB from 1 GB on."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 10**9 else f"{n_bytes / 1e6:,.0f} MB"


def _count(values: Sequence[int] | None, bucket: int) -> str:
    return "-" if values is None else f"{values[bucket]:,}"


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


def time_lines(spent: Mapping[str, Any], by_rank: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the time of the steps went, of all ranks and then of each, in percent of them; stages run side by side."""
    if len(by_rank) == 1:
        return [f"{_time_shares(spent, ranks=False)} of the steps"]
    each = [f"rank {rank}: {_time_shares(one, ranks=True)}" for rank, one in enumerate(by_rank)]
    return [f"all ranks: {_time_shares(spent, ranks=True)} of the steps", *each]


def _time_shares(spent: Mapping[str, Any], *, ranks: bool) -> str:
    """What is not known, as host-bound time is not on a CPU, is left out."""
    parts = []
    for name, words in SHOWN_TIMES.items():
        time_s = spent[f"{name}_s"]
        if time_s is not None and (ranks or name != "all_reduce"):
            share = time_s / spent["steps_s"] if spent["steps_s"] else 0.0
            parts.append(f"{words} {100 * share:.0f} %")
    return ", ".join(parts)


def composition_line(dynamics: Mapping[str, Any]) -> str:
    """What the buckets account for."""
    share, permuted = (100 * dynamics[f"composition_share{which}"] for which in ("", "_permuted"))
    return f"{share:.1f} % of the loss's variance is the steps' buckets ({permuted:.1f} % with labels drawn at random)"


def cache_line(by_rank: Sequence[Mapping[str, int]]) -> str:
    """How many forwards the target did not have to do, over all ranks."""
    found, kept, not_kept = (sum(counts[name] for counts in by_rank) for name in ("found", "kept", "not_kept"))
    full = f", {not_kept} had no room" if not_kept else ""
    return f"{found} of {found + kept + not_kept} forwards were there, {kept} kept{full}"


SHOWN_TIMES = {
    "target_busy": "target busy",
    "target_host_bound": "target host-bound",
    "drafter_busy": "drafter busy",
    "drafter_host_bound": "drafter host-bound",
    "drafter_wait": "waiting for features",
    "all_reduce": "all-reduce",
}


def tau_line(part: Mapping[str, Any]) -> str:
    """τ of one kind of prompts."""
    pooled, macro, speedup = (_figure(part[name]) for name in ("tau_pooled", "tau_macro", "speedup"))
    return f"{pooled} (macro {macro}) over {part['prompts']} prompts, speed-up {speedup}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
