"""A report -> its files: the page, Markdown, runs.csv, compare.json, report_spec.json, and every figure as PNG and SVG.

The page is one HTML file that asks for nothing: figures are inline SVG, styles and the few lines of script that sort a
table stand in it (`page.html.jinja`, filled by jinja2 with everything escaped but the figures).
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment
from markupsafe import Markup

from dflash_exp.compare.drawing import inline, png, settle, svg
from dflash_exp.compare.figures import Picture
from dflash_exp.compare.report import Report, run_table
from dflash_exp.compare.report_spec import spec_of
from dflash_exp.compare.tables import contrast_table, differs_table, markdown_table, measure_table, notes, runs_table

TEMPLATE = "page.html.jinja"


def files_of(report: Report, pictures: Sequence[Picture]) -> dict[str, str | bytes]:
    """Every file by its name in the folder."""
    drawn = {picture.name: svg(settle(picture.figure), picture.name) for picture in pictures}
    found: dict[str, str | bytes] = {
        "compare.json": json.dumps(report.document, indent=1, ensure_ascii=False) + "\n",
        "report_spec.json": json.dumps(spec_of(report, pictures), indent=1, ensure_ascii=False) + "\n",
        "compare.md": markdown(report, pictures),
        "runs.csv": runs_csv(report),
        "compare.html": html(report, pictures, drawn),
    }
    for picture in pictures:
        found[f"figures/{picture.name}.svg"] = drawn[picture.name]
        found[f"figures/{picture.name}.png"] = png(picture.figure)
    return found


def html(report: Report, pictures: Sequence[Picture], drawn: Mapping[str, str]) -> str:
    """The page."""
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        files("dflash_exp.compare").joinpath(TEMPLATE).read_text(encoding="utf-8")
    )
    inlined = [Markup(inline(drawn[each.name], each.title)) for each in pictures]
    figures = [
        {"title": each.title, "caption": each.caption, "svg": markup}
        for each, markup in zip(pictures, inlined, strict=True)
    ]
    return template.render(
        title=report.asked.group,
        look=report.look,
        metric=report.judged.measure.title,
        cautions=report.cautions,
        sentences=report.sentences,
        contrasts=contrast_table(report),
        measures=measure_table(report),
        runs=runs_table(report),
        differs=differs_table(report),
        figures=figures,
        notes=notes(report),
        commands=report.asked.commands,
    )


def runs_csv(report: Report) -> str:
    """One line a run, figures in full."""
    rows, buffer = run_table(report), io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def markdown(report: Report, pictures: Sequence[Picture]) -> str:
    """The same in Markdown, figures by reference."""
    lines = [f"# {report.asked.group}: {report.look}", ""]
    lines += [f"> {line}  " for line in report.cautions] + ([""] if report.cautions else [])
    lines += [line for lead, said in report.sentences for line in (f"**{lead}.** {said}", "")]
    for heading, table in (
        (f"Judged by {report.judged.measure.title}", contrast_table(report)), ("All measures", measure_table(report)),
        ("What differs", differs_table(report)), ("Runs", runs_table(report)),
    ):  # fmt: skip
        if table.rows:
            lines += [f"## {heading}", "", *markdown_table(table), ""]
    lines += [f"![{each.title}](figures/{each.name}.png)" for each in pictures]
    return "\n".join([*lines, "", *notes(report), ""])
