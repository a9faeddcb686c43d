"""The tables of a comparison, cell by cell, and what else its numbers say of themselves: for page and Markdown.

In: a report. Out: `Table`s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_exp.compare.judged import Contrast
from dflash_exp.compare.measures import Measure
from dflash_exp.compare.report import Report, Row, run_table
from dflash_exp.compare.sentences import between, shown


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    under: str = ""
    """In small, below."""
    order: float | str = ""
    """What it is sorted by."""
    kind: str = ""
    """A verdict, for its colour."""


@dataclass(frozen=True)
class Table:
    """Headings, and rows of as many cells."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def markdown_table(table: Table) -> list[str]:
    """Its lines in Markdown."""
    cells = [
        [f"{cell.text}{f' ({cell.under})' if cell.under else ''}".replace("|", "\\|") for cell in row]
        for row in table.rows
    ]
    return ["| " + " | ".join(row) + " |" for row in (table.headings, ["---"] * len(table.headings), *cells)]


def contrast_table(report: Report) -> Table:
    """One row a contrast, the one asked beforehand first."""
    kind = report.judged.measure
    headings = (
        "arm",
        "against",
        "seeds",
        "difference",
        "95 % interval",
        "counts as equal",
        "p",
        "adjusted",
        "verdict",
        "seeds it takes",
    )
    return Table(headings, [_contrast_row(each, kind) for each in report.contrasts])


def _contrast_row(contrast: Contrast, kind: Measure) -> list[Cell]:
    needed = contrast.n_for_margin
    takes = "-" if needed is None else _number(needed["n"])
    ends = "" if needed is None else f"{_number(needed['interval'][0])} to {_number(needed['interval'][1])}"
    verdict = contrast.verdict or "none yet"
    return [
        Cell(contrast.a, "asked beforehand" if contrast.adjustment == "none" and len(contrast.by_seed) > 1 else ""),
        Cell(contrast.b),
        Cell(str(len(contrast.by_seed)), order=len(contrast.by_seed)),
        Cell(shown(kind, contrast.difference, True), order=contrast.difference),
        Cell(between(kind, contrast.interval, True)),
        Cell(f"±{shown(kind, contrast.margin)}", order=contrast.margin),
        Cell(_p(contrast.p), order=2.0 if contrast.p is None else contrast.p),
        Cell(contrast.adjustment),
        Cell(verdict, kind=contrast.verdict or ""),
        Cell(takes, ends, order=-1 if needed is None or needed["n"] is None else needed["n"]),
    ]


def _p(p: float | None) -> str:
    return "-" if p is None else "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0")


def _number(n: int | None) -> str:
    return "> 1M" if n is None else f"{n:,}"


def measure_table(report: Report) -> Table:
    """One row an arm, one column a measure: mean, and below it the difference from the baseline with its interval."""
    headings = ["arm", "runs", *(_heading(row) for row in report.rows)]
    rows = []
    for arm in report.arms:
        n_done = sum(run.finished for run in arm.runs.values())
        first = Cell(arm.label, "baseline" if arm is report.baseline else "")
        rows.append([first, Cell(str(n_done), order=n_done), *(_measured(row, arm.label) for row in report.rows)])
    return Table(headings, rows)


def _heading(row: Row) -> str:
    return row.values.measure.title


def _measured(row: Row, label: str) -> Cell:
    kind, arm = row.values.measure, next(arm for arm in row.values.arms if arm.label == label)
    figure, contrast = row.values.figure(arm), row.contrasts.get(label)
    n_runs = sum(run.finished for run in arm.runs.values())
    lost = n_runs - figure.n if kind.name == "tokens_to_baseline" else 0
    text = shown(kind, figure.mean) if not lost else f"{shown(kind, figure.mean)}, not reached in {lost} of {n_runs}"
    order = figure.mean if figure.mean is not None else ""
    if contrast is None:
        return Cell(text, "" if figure.interval is None else between(kind, figure.interval), order)
    verdict = f"; {contrast.verdict}" if contrast.verdict not in (None, "undecided") else ""
    interval = "" if contrast.interval is None else f" ({between(kind, contrast.interval, True)})"
    return Cell(text, f"{shown(kind, contrast.difference, True)}{interval}{verdict}", order, contrast.verdict or "")


def runs_table(report: Report) -> Table:
    """One row a run."""
    kinds = {row.values.measure.name: row.values.measure for row in report.rows}
    found = run_table(report)
    names = [name for name in found[0] if name in kinds]
    headings = ["run", "arm", "seed", "state", *(kinds[name].title for name in names)]
    return Table(headings, [_run_row(own, [kinds[name] for name in names]) for own in found])


def _run_row(own: Mapping[str, Any], kinds: Sequence[Measure]) -> list[Cell]:
    said = [Cell(own["run"]), Cell(own["setting"]), Cell(own["seed"])]
    state = Cell(own["state"], kind="worse" if own["state"] == "failed" else "")
    figures = [
        Cell(shown(kind, own[kind.name]), order="" if own[kind.name] is None else own[kind.name]) for kind in kinds
    ]
    return [*said, state, *figures]


def differs_table(report: Report) -> Table:
    """The configuration, only what differs."""
    labels = [arm.label for arm in report.arms]
    rows = [[Cell(key), *(Cell(_value(own[label])) for label in labels)] for key, own in report.differs.items()]
    return Table(["key", *labels], rows)


def _value(value: Any) -> str:
    return str(value).rpartition(".")[2] if str(value).startswith("dflash_exp.") else str(value)


def notes(report: Report) -> list[str]:
    """What else the numbers say of themselves."""
    kind, floor, swapped = report.judged.measure, report.document["noise_floor"], report.document["placebo"]
    found = []
    if floor is not None:
        beyond = "beyond what its seed does to all arms" if floor["beyond_its_seed"] else "of one setting, over seeds"
        sd = shown(kind, floor["sd_of_a_run"])
        found.append(
            f"Noise floor: a run's {kind.title} has a standard deviation of {sd} {beyond}; "
            f"{floor['seeds']} seeds find a difference of {shown(kind, floor['detectable'])} with 80 % power."
        )
    if swapped is not None:
        found.append(
            f"Placebo: with the two labels swapped within seeds, {100 * swapped['share_as_large']:.3g} % of "
            f"{swapped['swaps']} swaps show a difference as large as the one found."
        )
    shared = report.document["hashes"]
    if shared["known"]:
        words = [
            f"{name.replace('_', ' ')} {'yes' if value else 'no'}" for name, value in shared.items() if name != "known"
        ]
        found.append(f"Hashes that all arms share at every seed: {', '.join(words[:-1])}; {words[-1]}.")
    return found
