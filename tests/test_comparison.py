"""The verb compare: what it writes, what it says, what it refuses."""

import csv
import json
from pathlib import Path

import pytest

from dflash_exp.cli import main
from tests.compare.sweeps import ANALYSIS, Job, noisy, sweep_of, write_jobs

LOSSES = {"shuffle": noisy(3, 0.02, 3, 1), "stride_jitter": noisy(2.8, 0.02, 3, 2)}


@pytest.fixture(scope="module")
def sweep_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep_of(tmp_path_factory.mktemp("sweeps") / "test", LOSSES)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The line that a user's mistake is answered with."""
    assert main(["compare", *map(str, arguments)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_everything_lies_in_a_folder_of_the_sweep_and_is_never_overwritten(
    sweep_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(sweep_dir)]) == 0
    said = capsys.readouterr().out
    assert "Verdict: interleave=stride_jitter is better than interleave=shuffle" in said
    assert f"page: {sweep_dir / 'compare' / 'compare.html'}" in said
    names = {path.relative_to(sweep_dir / "compare").as_posix() for path in (sweep_dir / "compare").rglob("*.*")}
    assert {"compare.html", "compare.md", "compare.json", "runs.csv"} <= names
    pictures = {"verdict", "loss", "buckets", "shares", "orders", "tau", "speed"}
    assert {f"figures/{name}.{kind}" for name in pictures for kind in ("png", "svg")} <= names
    before = (sweep_dir / "compare" / "compare.html").read_bytes()
    assert main(["compare", str(sweep_dir)]) == 0
    assert (sweep_dir / "compare" / "compare.html").read_bytes() == before
    assert (sweep_dir / "compare-2" / "compare.html").read_bytes() == before  # the same runs, the same page


def test_the_table_of_runs_has_a_line_for_each_of_them(sweep_dir: Path, tmp_path: Path) -> None:
    assert main(["compare", str(sweep_dir), "--out", str(tmp_path / "out")]) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "runs.csv").open()))
    assert [(row["setting"], row["seed"]) for row in rows[:2]] == [
        ("interleave=shuffle", "0"),
        ("interleave=shuffle", "1"),
    ]
    assert [float(row["probe/loss"]) for row in rows[:3]] == pytest.approx(LOSSES["shuffle"])
    markdown = (tmp_path / "out" / "compare.md").read_text()
    assert "**Verdict.** interleave=stride_jitter is better" in markdown and "| interleave=shuffle |" in markdown


def test_runs_of_several_sweeps_are_compared_together(tmp_path: Path) -> None:
    one = write_jobs(tmp_path / "one", [Job("shuffle", seed, loss) for seed, loss in enumerate(LOSSES["shuffle"])])
    two = write_jobs(tmp_path / "two", [Job("stride_jitter", seed, 2.8) for seed in range(3)])
    assert main(["compare", str(one), str(two)]) == 0
    document = json.loads((one / "compare" / "compare.json").read_text())
    assert [arm["n"] for arm in document["arms"]] == [3, 3] and document["contrasts"][0]["verdict"] == "better"


def test_runs_outside_a_sweep_are_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweep_of(tmp_path / "runs", LOSSES, analysis=None)
    assert main(["compare", str(folder), "--baseline", "interleave=shuffle"]) == 0
    assert capsys.readouterr().out.startswith("exploratory:")
    single = [str(path) for path in sorted(folder.glob("*-s0"))]
    assert main(["compare", *single, "--out", str(tmp_path / "two")]) == 0
    assert json.loads((tmp_path / "two" / "compare.json").read_text())["contrasts"] == []


def test_a_sweep_that_has_not_begun_a_run_has_a_page_too(tmp_path: Path) -> None:
    sweep_dir = write_jobs(tmp_path / "test", [Job(arm, 0, 3.0, status=None, n_records=0) for arm in LOSSES])
    assert main(["compare", str(sweep_dir)]) == 0
    assert "not yet" not in (sweep_dir / "compare" / "compare.html").read_text()


def test_what_is_no_sweep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        line = refusal(capsys, folder)
        assert line.startswith(
            f"dflash-exp: DIR must be the directory of a sweep, of a run or of several runs, got {folder}"
        )


def test_an_unknown_metric_is_answered_with_the_nearest(sweep_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, sweep_dir, "--metric", "probe/los")
    assert line == "dflash-exp: --metric must be a metric of runs, got probe/los; did you mean `probe/loss`?"


def test_an_unknown_baseline_is_answered_with_the_arms(sweep_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, sweep_dir, "--baseline", "interleave=tijdeman")
    assert (
        "got interleave=tijdeman, which is none of them; the arms are interleave=shuffle, interleave=stride_jitter"
        in line
    )


def test_sweeps_that_are_judged_by_different_analyses_are_refused(
    tmp_path: Path, sweep_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = sweep_of(tmp_path / "other", LOSSES, {**ANALYSIS, "margin": 0.02})
    line = refusal(capsys, sweep_dir, other)
    assert "DIRs must be judged by one analysis" in line and str(other) in line
    out = ("--out", str(tmp_path / "out"))
    assert (
        main(
            ["compare", str(sweep_dir), str(other), "--metric", "probe/loss", "--baseline", "interleave=shuffle", *out]
        )
        == 0
    )


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "plan.json", "evaluation.json"])
def test_a_damaged_file_is_one_line_that_names_it(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_dir = sweep_of(tmp_path / "test", LOSSES)
    (sweep_dir / "0-test-shuffle-s0" / name).write_text("{\n[\n")
    assert f"0-test-shuffle-s0/{name} must" in refusal(capsys, sweep_dir)
    assert not (sweep_dir / "compare").exists()


def test_a_folder_that_cannot_be_written_is_said(
    sweep_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    line = refusal(capsys, sweep_dir, "--out", tmp_path / "file" / "out")
    assert line.startswith("dflash-exp: --out must be a folder that can be written")
