"""Several ranks, real processes over gloo: the results of one rank, and what happens when one of them is in trouble."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_exp.checkpoint import newest_whole
from dflash_exp.compose import compose
from dflash_exp.door import to_yaml
from dflash_exp.launch.local import run_ranks
from tests.lengths import full_or
from tests.world import World, make_world, result_of, results_only

SCRIPT = Path(__file__).with_name("rank_script.py")
LONG = ("epochs=null", "steps=20", "batches_per_step=5", "evaluate=false", "probe.every_steps=10")
"""Twenty steps over ten epochs, of five batches or fewer, on ranks that hold unequal numbers of them."""
SHORT = ("epochs=null", "steps=6", "evaluate=false", "probe.every_steps=0", "checkpoint.every_steps=2")


@dataclass(frozen=True)
class Cluster:
    """A world, and a machine that runs ranks in it."""

    world: World
    folder: Path

    def run(self, name: str, n_ranks: int, *more: str, fault: str = "none") -> tuple[int, Path]:
        """The exit code and the run's directory."""
        topology = [f"topology.ranks_per_node={n_ranks}", "topology.timeout_s=8"]
        overrides = self.world.overrides(name, *topology, *more)
        files = self.folder / f"{name}.yaml", self.folder / f"{name}.overrides.yaml"
        files[0].write_text(to_yaml(compose(overrides)))
        files[1].write_text(yaml.safe_dump(overrides))
        command = [sys.executable, str(SCRIPT), fault, *map(str, files)]
        return run_ranks(command, n_ranks, grace_s=8), self.world.root / name


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("cluster")
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    patch.setenv("OMP_NUM_THREADS", "1")
    return Cluster(make_world(folder / "world"), folder)


@pytest.fixture(scope="module")
def one_rank(cluster: Cluster) -> Path:
    code, run_dir = cluster.run("one_rank", 1, *LONG, "pipeline=lockstep", fault="double")
    assert code == 0
    return run_dir


@pytest.fixture(scope="module")
def short_run(cluster: Cluster) -> Path:
    code, run_dir = cluster.run("short", 2, *SHORT)
    assert code == 0
    return run_dir


def assert_close(run_dir: Path, oracle: Path, rel: float = 1e-10) -> None:
    """Every result of every step to `rel`, what is not a float exactly."""
    ours, expected = results_only(run_dir), results_only(oracle)
    assert len(ours) == len(expected)
    for one, other in zip(ours, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            wanted = pytest.approx(value, rel=rel, abs=1e-13) if isinstance(value, float) else value
            assert one[name] == wanted, name


def hashes(run_dir: Path) -> dict[str, Any]:
    return {name: value for name, value in result_of(run_dir).items() if name.endswith("_sha256")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_ranks", "more"),
    [
        *full_or([(2, ("align=none",))], []),
        (2, ("align=lpt", "topology.target_workers=3", "pipeline.features_ahead=3")),
        (4, ("align=cost", "pipeline=lockstep")),
    ],
)
def test_ranks_workers_and_aligners_change_nothing_but_the_order_of_addition(
    cluster: Cluster, one_rank: Path, n_ranks: int, more: tuple[str, ...]
) -> None:
    code, run_dir = cluster.run(f"ranks_{n_ranks}_{more[0][6:]}", n_ranks, *LONG, *more, fault="double")
    assert code == 0
    assert_close(run_dir, one_rank)
    assert hashes(run_dir) == hashes(one_rank) and len(hashes(run_dir)) == 5
    plans = [json.loads((run / "plan.json").read_text())["plan_sha256"] for run in (run_dir, one_rank)]
    assert plans[0] == plans[1]


@pytest.mark.slow
def test_a_run_stopped_on_two_ranks_goes_on_with_one_and_a_stop_of_one_rank_stops_all_at_the_same_step(
    cluster: Cluster, short_run: Path
) -> None:
    code, run_dir = cluster.run("stopped", 2, *SHORT, fault="stop")
    assert code == 75
    result = result_of(run_dir)
    assert result["status"] == "stopped" and result["steps"] in (3, 4), "the signal may be heard a step later"
    code, _ = cluster.run("stopped", 1, *SHORT)
    assert code == 0
    assert_close(run_dir, short_run, rel=1e-5)  # fp32, whose sums over two batches one rank takes in another order
    assert hashes(run_dir) == hashes(short_run)


@pytest.mark.slow
def test_two_ranks_that_share_a_cache_give_the_results_of_two_without(cluster: Cluster, short_run: Path) -> None:
    disk = ("target.cache=disk", f"target.cache_dir={cluster.folder / 'features'}")
    for name, full in {"cold": "kept", "warm": "found"}.items():
        code, run_dir = cluster.run(name, 2, *SHORT, *disk)
        assert code == 0 and results_only(run_dir) == results_only(short_run)
        by_rank = result_of(run_dir)["target_cache_by_rank"]
        assert len(by_rank) == 2
        for counts in by_rank:
            assert counts[full] == sum(counts.values()) > 0, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "more", "cause"),
    [
        (
            "raise",
            ("pipeline=lockstep",),
            "rank 1: ArithmeticError: the target's own; in target, on batch",
        ),
        ("die", (), "rank 1 died without a word"),
        ("disk", ("checkpoint.max_failures=0",), "No space left on device"),
        *full_or(
            [
                ("hang", ("pipeline.stall_timeout_s=600",), "rank 1 died without a word, or did not come within"),
                ("spoil", (), "the gradient must be finite"),
            ],
            [],
        ),
    ],
)
def test_when_one_rank_is_lost_the_others_end_with_the_cause_and_the_last_checkpoint_is_whole(
    cluster: Cluster, short_run: Path, fault: str, more: tuple[str, ...], cause: str
) -> None:
    code, run_dir = cluster.run(fault, 2, *SHORT, *more, fault=fault)
    assert code == 1
    result = result_of(run_dir)
    assert result["status"] == "failed" and cause in result["error"]
    folder = newest_whole(run_dir, pytest.fail)
    assert (folder is None) if fault == "disk" else (folder is not None and folder.name == "step-00000002")
    if fault == "die":
        code, _ = cluster.run(fault, 2, *SHORT, *more)
        assert code == 0
        assert results_only(run_dir) == results_only(short_run)
        assert hashes(run_dir) == hashes(short_run)


@pytest.mark.slow
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all_and_named(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    code, run_dir = cluster.run("skipped", 2, *SHORT, "guard.non_finite=skip", fault="spoil")
    assert code == 0
    assert [record["train/skipped"] for record in results_only(run_dir)] == [False, False, True, False, False, False]
    assert result_of(run_dir)["skipped_steps"] == 1
    assert capfd.readouterr().out.count("skipped: the gradient must be finite") == 1


@pytest.mark.slow
def test_two_ranks_that_are_stopped_again_and_again_train_every_batch_once(tmp_path: Path, cluster: Cluster) -> None:
    script = Path(__file__).with_name("rank_soak_script.py")
    assert run_ranks([sys.executable, str(script), str(tmp_path)], 2, grace_s=8) == 0
    first, second, alone = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("rank-0", "rank-1", "alone"))
    assert sorted(first["trained"] + second["trained"]) == sorted(alone["trained"]) and len(alone["trained"]) > full_or(
        5000, 700
    )
    assert all(trained == sorted(trained) for trained in (first["trained"], second["trained"])), "in order"
    assert first["sessions"] == second["sessions"] > full_or(50, 7)
    assert first["weight"] == second["weight"] == pytest.approx(alone["weight"], rel=1e-10)
    assert first["losses"] == second["losses"] == pytest.approx(alone["losses"], rel=1e-10)
