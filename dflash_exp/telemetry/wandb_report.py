"""A comparison's folder -> a Report in W&B: `report_spec.json` block by block, its pictures logged by a run.

In: the folder that `compare` has written. Out: the report's address. Nothing in the folder is changed. A report of W&B
holds no pictures of its own, so a run of job type `compare` in the sweep's group logs them, and the report browses that
run. Needs the extra `report`: the package wandb-workspaces, which writes W&B's own form of a report.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dflash_exp.telemetry.wandb_account import WandbTrouble, signed_in
from dflash_exp.telemetry.wandb_client import Limits

Block = Mapping[str, Any]
PACKAGE = "wandb_workspaces"
LIMITS = Limits(init_s=20.0, finish_s=60.0)
JOB_TYPE = "compare"
WIDE = {"x": 0, "y": 0, "w": 24, "h": 12}
"""A panel over the whole of the report's grid of 24 columns."""


def publish(folder: Path, place: tuple[str | None, str] | None, limits: Limits = LIMITS) -> str:
    """The address of a new report in `place`, entity and project (None: where the first runs are). Raises
    WandbTrouble."""
    spec = json.loads((folder / "report_spec.json").read_text(encoding="utf-8"))
    sets = spec["runsets"]
    if find_spec(PACKAGE) is None:
        raise WandbTrouble('the package wandb-workspaces is not installed; pip install "dflash-exp[report]"')
    if place is None and not sets:
        raise WandbTrouble("no run's configuration names a project and a group; say --wandb ENTITY/PROJECT")
    entity, project = place or (sets[0]["entity"], sets[0]["project"])
    with signed_in():
        run = log_pictures(folder, spec, (entity, project), limits)
        return save(spec, run["entity"], project, run["id"])


def log_pictures(folder: Path, spec: Block, place: tuple[str | None, str], limits: Limits) -> dict[str, str]:
    """Every picture of the report as one of a run's, of which come the id and the entity. Raises what the client
    raises."""
    import wandb

    groups = [group for own in spec["runsets"] for group in own["groups"]]
    settings = wandb.Settings(
        silent=True, console="off", disable_git=True, init_timeout=limits.init_s, finish_timeout=limits.finish_s,
        finish_timeout_raises=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as aside:
        run = wandb.init(
            entity=place[0], project=place[1], dir=aside, name=spec["title"], group=groups[0] if groups else None,
            job_type=JOB_TYPE, mode="online", reinit="create_new", settings=settings,
        )  # fmt: skip
        images = [block for block in spec["blocks"] if block["kind"] == "image"]
        run.log({key_of(block): wandb.Image(str(folder / block["file"])) for block in images})
        run.finish()
    return {"id": run.id, "entity": run.entity}


def key_of(image: Block) -> str:
    """What a picture is called among what the run has logged."""
    return f"compare/{image['name']}"


def save(spec: Block, entity: str, project: str, pictures: str) -> str:
    """Make the report; `pictures`: the id of the run that has them. Raises what the client raises."""
    reports = import_module(f"{PACKAGE}.reports.v2")
    sets = [runset(own, entity) for own in spec["runsets"]]
    blocks = [block_of(block, sets, (entity, project, pictures)) for block in spec["blocks"]]
    report = reports.Report(entity=entity, project=project, title=spec["title"], blocks=blocks)
    report.save()
    return report.url


def block_of(block: Block, sets: list[Any], pictures: tuple[str, str, str]) -> Any:
    """W&B's own block; raises KeyError for a kind that there is not."""
    reports = import_module(f"{PACKAGE}.reports.v2")
    made = {
        "heading": lambda: reports.H2(block["text"]),
        "callout": lambda: reports.CalloutBlock(block["text"]),
        "markdown": lambda: reports.MarkdownBlock(block["text"]),
        "code": lambda: reports.CodeBlock(block["text"], language=None),
        "image": lambda: picture(block, *pictures),
        "panels": lambda: reports.PanelGrid(
            runsets=sets, panels=[line_plot(plot, block["x"]) for plot in block["plots"]]
        ),
    }
    return made[block["kind"]]()


def picture(block: Block, entity: str, project: str, run_id: str) -> Any:
    """A grid that shows one picture of one run."""
    reports, expr = import_module(f"{PACKAGE}.reports.v2"), import_module(f"{PACKAGE}.expr")
    own = reports.Runset(entity, project, name="pictures", filters=expr.And(expr.Metric("ID") == run_id))
    browser = reports.MediaBrowser(
        title=block["caption"], media_keys=[key_of(block)], num_columns=1, layout=reports.Layout(**WIDE)
    )
    return reports.PanelGrid(runsets=[own], panels=[browser], hide_run_sets=True)


def runset(own: Block, entity: str) -> Any:
    """The runs of one project; `entity`: where they name none."""
    reports, expr = import_module(f"{PACKAGE}.reports.v2"), import_module(f"{PACKAGE}.expr")
    filters = expr.And(expr.Metric("Group").isin(own["groups"]), expr.Metric("JobType").isin(own["job_types"]))
    return reports.Runset(
        own["entity"] or entity, own["project"], name="runs", filters=filters, groupby=own["grouped_by"]
    )


def line_plot(plot: Block, x: str) -> Any:
    """Over the runs of each group that its runset makes: their mean, with the standard deviation as a band."""
    reports = import_module(f"{PACKAGE}.reports.v2")
    return reports.LinePlot(title=plot["title"], x=x, y=plot["y"], groupby_aggfunc="mean", groupby_rangefunc="stddev")
