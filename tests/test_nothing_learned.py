"""Beside the real curves of a comparison stand those of the same orders with nothing learned, where losses are kept."""

from pathlib import Path

import numpy as np
import pytest

from dflash_exp.cli import main
from dflash_exp.compare.runs import Run, read_run
from dflash_exp.nothing_learned import curves_of, has_losses
from tests.world import World, make_world

UNLEARNING = ("optim.lr=0", "optim.adamw_lr=0", "probe.every_steps=0", "evaluate=false")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def run_dirs(world: World, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two orders, neither of which learns; the first keeps its losses."""
    found = [world.train(name, f"interleave={name}", *UNLEARNING) for name in ("shuffle", "sequential")]
    out = tmp_path_factory.mktemp("plan") / "plan"
    assert main(["plan", *world.overrides("unused", f"plan.loss_from={found[0]}", f"plan.out={out}")]) == 0
    return found


def run_of(run_dir: Path) -> Run:
    return read_run(run_dir, (), {}, "finished", None)


def test_from_the_losses_of_one_run_come_the_curves_of_all_orders(run_dirs: list[Path]) -> None:
    assert [has_losses(run_dir) for run_dir in run_dirs] == [True, False]
    curves, remark = curves_of(run_dirs)
    assert remark is None
    for run_dir in run_dirs:
        np.testing.assert_allclose(curves[run_dir.name], run_of(run_dir).column("train/loss"), rtol=1e-4)


def test_where_no_run_keeps_losses_nothing_is_drawn(run_dirs: list[Path]) -> None:
    assert curves_of(run_dirs[1:]) == ({}, None)


def test_losses_of_other_blocks_are_left_out_and_said(world: World, run_dirs: list[Path]) -> None:
    other = world.train("other", "interleave=shuffle", "loss.gamma=2.0", *UNLEARNING)
    curves, remark = curves_of([*run_dirs, other])
    assert curves == {} and remark is not None and "the curves with nothing learned are left out" in remark


def test_a_comparison_draws_them(run_dirs: list[Path], tmp_path: Path) -> None:
    assert main(["compare", *map(str, run_dirs), "--out", str(tmp_path / "out")]) == 0
    assert "with nothing learned" in (tmp_path / "out" / "compare.html").read_text()
