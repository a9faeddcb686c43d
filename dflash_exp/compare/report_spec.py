"""report_spec.json: the W&B Report that a comparison would be, as plain data, whether or not anybody makes it.

In: a report and its pictures. Out: title, runsets and blocks, in the page's order. A block is a dictionary by `kind`:
  heading, callout, markdown, code   with a `text`
  image                              the picture `name`, whose file lies beside the page
  panels                             line plots of every runset over `x`, each of the metrics `y`, the lines grouped
What a chart of W&B can show live stands behind the picture that judges it: a group's band in W&B is the spread of its
runs and no paired interval, so verdicts travel as text, table and image.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_exp.compare.figures import Picture, bucket_fields
from dflash_exp.compare.report import Report
from dflash_exp.compare.tables import (
    Table,
    contrast_table,
    differs_table,
    markdown_table,
    measure_table,
    notes,
    runs_table,
)

Block = dict[str, Any]
X_AXIS = "trainer/step"
TITLE_CHARACTERS = 128
"""W&B refuses a longer title."""
LIVE = {
    "loss": ("probe/loss", "train/loss"),
    "tau": ("probe/tau_replayed",),
    "speed": ("throughput/tokens_per_s", "pipeline/drafter_wait_s"),
}
"""Fields of the records that a picture is drawn from, by its name; those of `buckets` depend on the runs."""
PLACE = ("entity", "project", "group", "job_type")
"""Keys of `telemetry.wandb`."""
BANDS = "Lines: means of an arm's runs, bands: their standard deviation. Not paired, so no verdict: that stands above."


def spec_of(report: Report, pictures: Sequence[Picture]) -> dict[str, Any]:
    """The whole report."""
    sets = runsets(report)
    first, *later = [[*_shown(picture), *(_live(report, picture) if sets else [])] for picture in pictures] or [[]]
    blocks = [
        *({"kind": "callout", "text": line} for line in report.cautions),
        *({"kind": "markdown", "text": f"**{lead}.** {said}"} for lead, said in report.sentences),
        *_table(f"Judged by {report.judged.measure.title}", contrast_table(report)),
        *first,
        *_table("All measures", measure_table(report)),
        *(block for shown in later for block in shown),
        *_table("What differs in the configurations", differs_table(report)),
        *_table("Runs", runs_table(report)),
        {"kind": "heading", "text": "How it was judged"},
        *({"kind": "markdown", "text": line} for line in notes(report)),
        {"kind": "code", "text": "\n".join(report.asked.commands)},
    ]
    title = f"{report.asked.group}: {report.look}"[:TITLE_CHARACTERS]
    return {"title": title, "runsets": sets, "blocks": blocks}


def runsets(report: Report) -> list[dict[str, Any]]:
    """Where the runs are in W&B, one set for each project, of the runs that have a group there."""
    places: dict[tuple[str | None, str], list[tuple[str, str]]] = {}
    for run in (run for arm in report.arms for run in arm.runs.values()):
        entity, project, group, job_type = (run.config.get(f"telemetry.wandb.{key}") for key in PLACE)
        if project is not None and group is not None:
            places.setdefault((entity, project), []).append((group, job_type or "train"))
    keys = [f"config.{key}" for key in grouping(report.differs)]
    return [
        {
            "entity": entity,
            "project": project,
            "groups": sorted({group for group, _ in held}),
            "job_types": sorted({job_type for _, job_type in held}),
            "grouped_by": keys,
        }
        for (entity, project), held in places.items()
    ]


def grouping(differs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Keys that tell all arms apart, classes before their options, none that tells no more than those before it.

    `differs`: of each key its value in each arm.
    """
    chosen: list[str] = []
    n_apart = 1
    for key in sorted(differs, key=lambda key: (not key.endswith("._target_"), key)):
        labels = differs[key]
        told = len({tuple(str(differs[each][label]) for each in (*chosen, key)) for label in labels})
        if told > n_apart:
            chosen, n_apart = [*chosen, key], told
    return chosen


def _table(heading: str, table: Table) -> list[Block]:
    text = "\n".join(markdown_table(table))
    return [{"kind": "heading", "text": heading}, {"kind": "markdown", "text": text}] if table.rows else []


def _shown(picture: Picture) -> list[Block]:
    image = {"kind": "image", "name": picture.name, "file": f"figures/{picture.name}.png", "caption": picture.caption}
    return [{"kind": "heading", "text": picture.title}, image]


def _live(report: Report, picture: Picture) -> list[Block]:
    """The fields that a picture is drawn from, as far as runs have them."""
    fields = {**LIVE, "buckets": tuple(bucket_fields(report.arms).values())}.get(picture.name, ())
    recorded = {field for arm in report.arms for run in arm.runs.values() for field in run.columns}
    plots = [{"title": field, "y": [field]} for field in fields if field in recorded]
    return [{"kind": "panels", "x": X_AXIS, "plots": plots}, {"kind": "markdown", "text": BANDS}] if plots else []
