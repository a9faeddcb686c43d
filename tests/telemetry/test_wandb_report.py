"""The real client against the loopback server: a comparison that becomes a Report, or a line that says why not."""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_exp.cli import main
from dflash_exp.telemetry import wandb_report
from dflash_exp.telemetry.wandb_account import WandbTrouble
from dflash_exp.telemetry.wandb_client import Limits
from dflash_exp.telemetry.wandb_report import publish
from dflash_exp.verbs.compare import published
from tests.compare.sweeps import ANALYSIS, sweep_of
from tests.telemetry.fake_wandb_api import FakeWandbApi
from tests.telemetry.wandb_sessions import files_with_the_key, meet

pytestmark = pytest.mark.usefixtures("wandb_client")
LOSSES = {"shuffle": [3.0], "stride_jitter": [2.9]}
PLACED = {"telemetry.wandb.project": "dflash", "telemetry.wandb.entity": None}
HASTY = Limits(init_s=1.5, finish_s=1.5)
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000 1f15c4890000000d49444154789c6360606060000000050001"
    "a5f645400000000049454e44ae426082"
)
IMAGE = {"kind": "image", "name": "verdict", "file": "figures/verdict.png", "caption": "bars"}
SPEC: dict[str, Any] = {
    "title": "test: final",
    "runsets": [
        {
            "entity": None,
            "project": "dflash",
            "groups": ["test"],
            "job_types": ["train"],
            "grouped_by": ["config.interleave._target_"],
        }
    ],
    "blocks": [
        {"kind": "callout", "text": "seeds are missing"},
        {"kind": "markdown", "text": "**Verdict.** undecided"},
        {"kind": "heading", "text": "The differences"},
        IMAGE,
        {"kind": "panels", "x": "trainer/step", "plots": [{"title": "probe/loss", "y": ["probe/loss"]}]},
        {"kind": "code", "text": "dflash-exp compare runs/test"},
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As `compare` leaves one, as far as a report is made of it."""
    (tmp_path / "out" / "figures").mkdir(parents=True)
    (tmp_path / "out" / "figures" / "verdict.png").write_bytes(PIXEL)
    (tmp_path / "out" / "report_spec.json").write_text(json.dumps(SPEC))
    return tmp_path / "out"


@pytest.fixture
def workspaces() -> None:
    pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed")


@pytest.mark.usefixtures("workspaces")
def test_a_report_has_the_blocks_in_their_order_and_its_pictures_from_a_run_of_their_own(
    wandb_api: FakeWandbApi, folder: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    url = publish(folder, None)
    assert url.startswith(f"{wandb_api.url}/me/dflash/reports/test:-final--")
    (sent,) = wandb_api.reports
    assert (sent["entityName"], sent["projectName"], sent["displayName"]) == ("me", "dflash", "test: final")
    blocks = wandb_api.spec()["blocks"][1:-1]  # the client puts an empty paragraph at both ends
    assert [block["type"] for block in blocks] == [
        "callout-block", "markdown-block", "heading", "panel-grid", "panel-grid", "code-block",
    ]  # fmt: skip
    assert blocks[0]["children"][0]["children"] == [{"text": "seeds are missing"}]
    assert blocks[1]["content"] == "**Verdict.** undecided" and blocks[2]["children"] == [{"text": "The differences"}]
    (run,) = wandb_api.runs.values()
    assert (run.job_type, run.group, run.exit_code) == ("compare", "test", 0)
    pictures, charts = (block["metadata"] for block in blocks[3:5])
    (browser,) = pictures["panelBankSectionConfig"]["panels"]
    assert browser["viewType"] == "Media Browser" and browser["config"]["mediaKeys"] == ["compare/verdict"]
    assert filters(pictures) == {"name": run.name}
    assert run.history[0]["compare/verdict"]["_type"] == "image-file" and PIXEL in wandb_api.files.values()
    (plot,) = charts["panelBankSectionConfig"]["panels"]
    assert (plot["config"]["xAxis"], plot["config"]["metrics"]) == ("trainer/step", ["probe/loss"])
    assert filters(charts) == {"group": ["test"], "jobType": ["train"]}
    assert charts["runSets"][0]["grouping"] == [{"section": "config", "name": "interleave.value._target_"}]
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
    assert files_with_the_key(tmp_path) == []


def filters(grid: dict[str, Any]) -> dict[str, Any]:
    """Of a grid's only set of runs: what each key must be."""
    (own,) = grid["runSets"]
    return {each["key"]["name"]: each["value"] for each in own["filters"]["filters"]}


@pytest.mark.usefixtures("workspaces")
def test_a_page_becomes_a_report_block_by_block(
    wandb_api: FakeWandbApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loose = {**ANALYSIS, "seeds": 1}
    made = sweep_of(tmp_path / "test", LOSSES, loose, config=PLACED, n_records=8)
    assert main(["compare", str(made), "--wandb"]) == 0
    assert f"report: {wandb_api.url}/me/dflash/reports/" in capsys.readouterr().out
    spec = json.loads((made / "compare" / "report_spec.json").read_text())
    types = {
        "heading": "heading", "callout": "callout-block", "markdown": "markdown-block", "code": "code-block",
        "image": "panel-grid", "panels": "panel-grid",
    }  # fmt: skip
    sent = wandb_api.spec()["blocks"][1:-1]
    assert [block["type"] for block in sent] == [types[block["kind"]] for block in spec["blocks"]]
    written = [block["text"] for block in spec["blocks"] if block["kind"] == "markdown"]
    assert [block["content"] for block in sent if block["type"] == "markdown-block"] == written


def test_a_report_that_cannot_be_made_costs_a_line_and_not_the_page(
    wandb_api: FakeWandbApi, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setattr(wandb_report, "PACKAGE", "wandb")
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    assert published(folder, ("me", "dflash")) == 1
    assert capsys.readouterr().err == (
        "dflash-exp: no W&B report was made: no key; `wandb login` stores one "
        "(the page is whole; report_spec.json beside it is what was to be made)\n"
    )
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before and wandb_api.reports == []


def test_a_server_that_is_gone_is_said_soon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeWandbApi() as gone:
        url = gone.url
    meet(url, monkeypatch)
    monkeypatch.setattr(wandb_report, "PACKAGE", "wandb")
    with pytest.raises(WandbTrouble, match=r"refused|deadline|respond"):
        publish(folder, None, HASTY)


def test_what_a_report_needs_and_is_not_there_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_report, "PACKAGE", "wandb")
    (folder / "report_spec.json").write_text(json.dumps(SPEC | {"runsets": []}))
    with pytest.raises(WandbTrouble, match="names a project and a group; say --wandb ENTITY/PROJECT"):
        publish(folder, None)
    monkeypatch.setattr(wandb_report, "PACKAGE", "no_such_package")
    with pytest.raises(WandbTrouble, match=r'wandb-workspaces is not installed; pip install "dflash-exp\[report\]"'):
        publish(folder, ("me", "dflash"))


@pytest.mark.parametrize("place", ["dflash", "me/", "/dflash", "me/dflash/test"])
def test_a_place_for_a_report_is_entity_and_project(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "runs/none", "--wandb", place]) == 2
    said = f"dflash-exp: --wandb takes ENTITY/PROJECT or nothing, got {place}; nothing: where the runs are\n"
    assert capsys.readouterr().err == said
