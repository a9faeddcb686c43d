"""A Slurm of two virtual nodes with eight fake GPUs each, of this worker's own, and a tiny world to train in it."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_exp.cli import main
from dflash_exp.queued import held_jobs
from dflash_exp.run_state import Word, run_state
from dflash_exp.telemetry.sinks import read_records
from tests.world import World, make_world

HERE = Path(__file__).parent
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Cluster:
    """A running Slurm, and what is submitted to it."""

    world: World
    folder: Path

    def train(self, *overrides: str, step_s: float = 0.0) -> None:
        """Submit; each optimizer step of it takes `step_s` at least."""
        typed = [o for o in self.world.overrides("x") if not o.startswith("run_dir")]
        setup = f"hydra.launcher.setup=['export PYTHONPATH={HERE / 'slow'} STEP_S={step_s}']" if step_s else "seed=0"
        small = ["evaluate=false", "hydra.launcher.cpus_per_task=1", "hydra.launcher.memory=null", setup]
        assert main(["train", *typed, *small, *overrides]) == 0

    def has_trained(self, run_dir: Path, n_steps: int) -> None:
        """Wait until as many steps have been done, and the job still runs."""

        def holds() -> bool:
            metrics = run_dir / "metrics.jsonl"
            return metrics.is_file() and len(read_records(metrics)) >= n_steps and word(run_dir) == "running"

        until(holds, f"step {n_steps} of {run_dir}")

    def has_ended(self, run_dir: Path) -> Word:
        """Wait until its job is no longer in the queue; what became of the run."""
        until(lambda: word(run_dir) not in ("running", "queued"), f"the end of {run_dir}")
        return word(run_dir)


def word(run_dir: Path) -> Word:
    return run_state(run_dir, held_jobs([run_dir])).word


def until(holds: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.3)


def control(*arguments: str) -> str:
    """Slurm's answer to a command."""
    return subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60).stdout


def not_here() -> str | None:
    """Why no Slurm can be started, None where it can."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    if shutil.which("slurmctld") is None and shutil.which("apt-get") is None:
        return "slurm-wlm and munge are not installed, and there is no apt to install them"
    return None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    why = not_here()
    if why is not None:
        pytest.skip(why)
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    directory = Path(f"/tmp/dflash-slurm-{number}")  # short: sockets lie in it
    knobs = {"SLURM_T_DIR": str(directory), "SLURM_T_NODES": "2", "SLURM_T_PORT": str(27_817 + 50 * number)}
    script = ["flock", "--close", "/tmp/dflash-slurm.lock", "bash", str(HERE / "start_slurm.sh")]
    started = subprocess.run([*script, "start"], env=os.environ | knobs, capture_output=True, text=True, timeout=300)
    if started.returncode != 0:
        pytest.skip(f"Slurm could not be installed or started: {' '.join(started.stderr.split())[-200:]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(directory / "etc" / "slurm.conf"))
        folder = tmp_path_factory.mktemp("cluster")
        try:
            yield Cluster(make_world(folder), folder)
        finally:
            subprocess.run([*script, "stop"], env=os.environ | knobs, capture_output=True, timeout=120)
