"""The W&B Report that a comparison would be: what stands in it, in which order, and how its charts are grouped."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from dflash_exp.compare.figures import Picture
from dflash_exp.compare.report import Asked, Report, report_of
from dflash_exp.compare.report_spec import grouping, spec_of
from dflash_exp.comparison import Options, question_of
from dflash_exp.gathered import gather
from tests.compare.sweeps import ANALYSIS, Job, sweep_of, write_jobs

LOSSES = {"shuffle": [3.0, 3.1, 2.95], "stride_jitter": [2.9, 3.02, 2.87]}
PROJECT = {"telemetry.wandb.project": "dflash", "telemetry.wandb.entity": "lab", "telemetry.wandb.job_type": None}
NAMES = ("verdict", "loss", "buckets", "orders", "speed")


def report(sweep_dir: Path) -> Report:
    gathered = gather(sweep_dir)
    question, frozen = question_of([gathered], Options(None, None, None))
    return report_of(gathered.runs, question, Asked("test", frozen, ["dflash-exp compare test"]))


def pictures() -> list[Picture]:
    """Named as those of a page, and empty."""
    return [Picture(name, name.upper(), f"of {name}", Figure()) for name in NAMES]


def spec(folder: Path, **more: Any) -> dict[str, Any]:
    return spec_of(report(sweep_of(folder, LOSSES, **more)), pictures())


def texts(found: dict[str, Any], kind: str) -> list[str]:
    return [block["text"] for block in found["blocks"] if block["kind"] == kind]


def test_the_blocks_stand_in_the_page_s_order(tmp_path: Path) -> None:
    found = spec(tmp_path, config=PROJECT, n_records=10)
    kinds = [block["kind"] for block in found["blocks"]]
    assert kinds[:5] == ["markdown"] * 5 and kinds[5:9] == ["heading", "markdown", "heading", "image"]
    assert texts(found, "heading") == [
        "Judged by probe loss", "VERDICT", "All measures", "LOSS", "BUCKETS", "ORDERS", "SPEED",
        "What differs in the configurations", "Runs", "How it was judged",
    ]  # fmt: skip
    images = [block for block in found["blocks"] if block["kind"] == "image"]
    assert [block["file"] for block in images] == [f"figures/{name}.png" for name in NAMES]
    assert found["title"] == "test: final" and found["blocks"][-1]["text"] == "dflash-exp compare test"


def test_cautions_come_first(tmp_path: Path) -> None:
    jobs = [Job(arm, seed, 3.0, result={"restarts": seed}) for arm in LOSSES for seed in range(3)]
    found = report(write_jobs(tmp_path, jobs))
    blocks = spec_of(found, [])["blocks"]
    assert len(found.cautions) == 1 and blocks[0] == {"kind": "callout", "text": found.cautions[0]}
    assert blocks[1]["text"].startswith("**Compared.** 2 settings")


def test_the_verdict_and_its_interval_are_text_table_and_image(tmp_path: Path) -> None:
    found = report(sweep_of(tmp_path, LOSSES))
    low, high = found.contrasts[0].interval or (0.0, 0.0)
    said, table = (f"{low:+.4f} to {high:+.4f}".replace("-", "−"), spec_of(found, pictures())["blocks"][6]["text"])
    assert f"95 % interval {said}" in found.sentences[2][1]
    heading, line, row = table.splitlines()
    assert heading.startswith("| arm | against | seeds | difference | 95 % interval |") and set(line) == set("|- ")
    assert f"| {said} |" in row and row.startswith("| interleave=stride_jitter (asked beforehand) |")


def test_charts_stand_behind_the_picture_of_the_same_fields_over_the_run_s_own_steps(tmp_path: Path) -> None:
    blocks = spec(tmp_path, config=PROJECT, n_records=10)["blocks"]
    at = {blocks[i - 1]["name"]: block for i, block in enumerate(blocks) if block["kind"] == "panels"}
    assert {block["x"] for block in at.values()} == {"trainer/step"}
    fields = {name: [plot["y"] for plot in block["plots"]] for name, block in at.items()}
    assert fields == {
        "loss": [["probe/loss"], ["train/loss"]],
        "buckets": [["probe/bucket/0/loss"], ["probe/bucket/1/loss"]],
        "speed": [["throughput/tokens_per_s"], ["pipeline/drafter_wait_s"]],
    }


def test_charts_are_of_the_runs_places_and_grouped_by_what_tells_the_arms_apart(tmp_path: Path) -> None:
    assert spec(tmp_path, config=PROJECT)["runsets"] == [
        {
            "entity": "lab",
            "project": "dflash",
            "groups": ["test"],
            "job_types": ["train"],
            "grouped_by": ["config.interleave._target_"],
        }
    ]


def test_runs_that_are_in_no_project_have_no_charts(tmp_path: Path) -> None:
    found = spec(tmp_path)
    assert found["runsets"] == [] and "panels" not in {block["kind"] for block in found["blocks"]}


def test_what_no_run_has_recorded_has_no_chart(tmp_path: Path) -> None:
    begun = [Job(arm, 0, 3.0, status=None, n_records=0, config=PROJECT) for arm in LOSSES]
    found = spec_of(report(write_jobs(tmp_path, begun)), pictures())
    assert len(found["runsets"]) == 1 and "panels" not in {block["kind"] for block in found["blocks"]}


def test_a_title_is_no_longer_than_w_and_b_takes_it(tmp_path: Path) -> None:
    gathered = gather(sweep_of(tmp_path, LOSSES, ANALYSIS))
    question, frozen = question_of([gathered], Options(None, None, None))
    assert len(spec_of(report_of(gathered.runs, question, Asked("g" * 200, frozen, [""])), [])["title"]) == 128


@pytest.mark.parametrize(
    ("differs", "keys"),
    [
        ({}, []),
        ({"optim.lr": {"a": 1, "b": 2}}, ["optim.lr"]),
        (
            {"align.cost": {"a": "-", "b": 1}, "interleave._target_": {"a": "S", "b": "J"}},
            ["interleave._target_"],
        ),
        (
            {"interleave.width": {"a": "-", "b": 1, "c": 2}, "interleave._target_": {"a": "S", "b": "J", "c": "J"}},
            ["interleave._target_", "interleave.width"],
        ),
    ],
)
def test_as_few_keys_group_as_tell_all_arms_apart(differs: dict[str, dict[str, Any]], keys: list[str]) -> None:
    assert grouping(differs) == keys
