"""Everything that a comparison says, before it is a page, a Markdown file or a table.

In: runs, a question, what the commands were. Out: `Report`: cautions, five sentences, contrasts, tables and figures.
"""

# N seeds, K arms

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_exp.compare import judged, sentences
from dflash_exp.compare.arms import Arm, block_names, differing, find_arm, group_arms
from dflash_exp.compare.cautions import cautions, hashes
from dflash_exp.compare.judged import Contrast, Question, Values, family, primary, tokens_to_baseline, values_of
from dflash_exp.compare.measures import MEASURES, Measure, device_hours, measure
from dflash_exp.compare.runs import Run
from dflash_exp.compare.sentences import Sentence


@dataclass(frozen=True)
class Asked:
    """Where the runs come from, and how this was asked."""

    group: str
    """The sweep's name, or the sweeps'."""
    frozen: Mapping[str, Any] | None
    """`analysis` of sweep.json."""
    commands: Sequence[str]
    """What trained it, where that is known, and what compares it."""
    remarks: Sequence[str] = ()
    """What could not be shown."""


@dataclass(frozen=True, eq=False)
class Row:
    """One measure over all arms, and each arm against the baseline."""

    values: Values
    contrasts: Mapping[str, Contrast]
    """By the arm's label; empty where there is no baseline."""


@dataclass(frozen=True, eq=False)
class Report:
    """What is said."""

    asked: Asked
    question: Question
    look: str
    """final, interim look or exploratory."""
    arms: Sequence[Arm]
    baseline: Arm | None
    cautions: Sequence[str]
    sentences: Sequence[Sentence]
    primary: Contrast | None
    family: Sequence[Contrast]
    rows: Sequence[Row]
    """The measure that it is judged by comes first."""
    differs: Mapping[str, Mapping[str, Any]]
    """Of the configuration: key -> arm's label -> value."""
    document: Mapping[str, Any]
    """compare.json."""

    @property
    def contrasts(self) -> list[Contrast]:
        """As compare.json lists them."""
        return _listed(self.primary, self.family)

    @property
    def judged(self) -> Values:
        """The measure that it is judged by."""
        return self.rows[0].values

    def row(self, name: str) -> Row | None:
        """That of a measure, None where no run has it."""
        return next((row for row in self.rows if row.values.measure.name == name), None)


def report_of(runs: Sequence[Run], question: Question, asked: Asked) -> Report:
    """Compare the runs; raises ValueError where the baseline or the contrast is none of the arms."""
    arms, doubles = group_arms(runs)
    baseline = None if question.baseline is None else find_arm(arms, question.baseline, "the baseline")
    rows = _rows(arms, question, baseline)
    first, jointly = primary(rows[0].values, question, arms), list(rows[0].contrasts.values())
    twice = [f"{run.name} is of an arm and seed that is there already: left out" for run in doubles]
    said = [*cautions(arms, question), *asked.remarks, *twice]
    shared = hashes(arms)
    return Report(
        asked=asked,
        question=question,
        look=_look(question, first or next(iter(jointly), None)),
        arms=arms,
        baseline=baseline,
        cautions=said,
        sentences=_sentences(rows, first, question, asked, shared),
        primary=first,
        family=jointly,
        rows=rows,
        differs=_differs(arms),
        document=_document(rows[0], first, asked, shared, said),
    )


def _rows(arms: Sequence[Arm], question: Question, baseline: Arm | None) -> list[Row]:
    """What it is judged by, then every measure that some run has."""
    kind = judged.judged_by(question)
    first, *others = (_row(values_of(arms, each), question, baseline) for each in (kind, *MEASURES))
    rows = [first, *(row for row in others if row.values.measure.name != kind.name and _any(row))]
    if baseline is not None:
        rows.insert(_place(rows), _row(tokens_to_baseline(arms, baseline), question, baseline))
    return rows


def _any(row: Row) -> bool:
    return bool(np.isfinite(row.values.value_NK).any())


def _place(rows: Sequence[Row]) -> int:
    """Behind τ."""
    return 1 + max((at for at, row in enumerate(rows) if "tau" in row.values.measure.name), default=0)


def _row(values: Values, question: Question, baseline: Arm | None) -> Row:
    contrasts = [] if baseline is None else family(values, question, baseline)
    return Row(values, {contrast.a: contrast for contrast in contrasts})


def _look(question: Question, contrast: Contrast | None) -> str:
    if question.exploratory:
        return "exploratory"
    return "interim look" if contrast is not None and contrast.verdict is None else "final"


def _document(
    row: Row, first: Contrast | None, asked: Asked, shared: dict[str, Any], said: Sequence[str]
) -> dict[str, Any]:
    return {
        "analysis": asked.frozen,
        "arms": judged.arms_as_json(row.values),
        "contrasts": [each.as_json() for each in _listed(first, list(row.contrasts.values()))],
        "noise_floor": judged.noise_floor(row.values),
        "placebo": judged.placebo(first),
        "hashes": shared,
        "warnings": list(said),
    }


def _listed(first: Contrast | None, jointly: Sequence[Contrast]) -> list[Contrast]:
    """The primary one, then all jointly, where there are more than that one."""
    return [*([] if first is None else [first]), *(jointly if len(jointly) > 1 or first is None else [])]


def _sentences(
    rows: Sequence[Row], first: Contrast | None, question: Question, asked: Asked, shared: dict[str, Any]
) -> list[Sentence]:
    arms = rows[0].values.arms
    hours = [device_hours(run) or 0.0 for arm in arms for run in arm.runs.values()]
    by_name = {row.values.measure.name: row for row in rows}
    tau = by_name.get("tau_pooled", by_name.get("probe/tau_replayed"))
    values = tau.values if tau is not None else values_of(arms, measure("tau_pooled"))
    told = primary(values, question, arms) or next(iter(tau.contrasts.values() if tau else ()), None)
    return [
        sentences.compared(arms, asked.group),
        sentences.equal(shared, _groups(differing([next(iter(arm.runs.values())) for arm in arms]))),
        sentences.verdict(first, list(rows[0].contrasts.values()), question, rows[0].values),
        sentences.decoding(told, values, values_of(arms, measure("speedup"))),
        sentences.cost(sum(hours), sum(hour > 0 for hour in hours), asked.commands),
    ]


def _groups(keys: Sequence[str]) -> list[str]:
    """`interleave` for all keys of a group whose class differs, else the keys."""
    groups = [key.removesuffix("._target_") for key in keys if key.endswith("._target_")]
    rest = [key for key in keys if not re.match(rf"({'|'.join(groups) or 'none'})\.", key)]
    return [*groups, *rest]


def _differs(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    firsts = {arm.label: next(iter(arm.runs.values())) for arm in arms}
    return {
        key: {label: run.config.get(key, "-") for label, run in firsts.items()}
        for key in differing(list(firsts.values()))
    }


def run_table(report: Report) -> list[dict[str, Any]]:
    """One row a run: arm, seed, state, every measure; as runs.csv and the page show them."""
    blocks = judged.blocks_of(report.arms)
    names = dict(zip(blocks, block_names(blocks), strict=True))
    found = []
    for arm in report.arms:
        for block, run in sorted(arm.runs.items()):
            figures: dict[str, float | None] = {kind.name: kind.of(run) for kind in _kinds(report)}
            found.append({"setting": arm.label, "seed": names[block], "state": run.word, "run": run.name, **figures})
    return found


def _kinds(report: Report) -> list[Measure]:
    return [row.values.measure for row in report.rows if row.values.measure.name != "tokens_to_baseline"]
