"""Whether runs can be handed to a queue and left alone, and what they will take: asked before any is submitted.

In: the runs' configurations and the settings of Slurm's launcher. Out: `Prospect`, or ValueError with the first run
that could not do what it is asked for, named. Each is planned (milliseconds a run where the data are the same).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_exp.config import Config, defaults, plain
from dflash_exp.distributed import Device, Topology, check_topology
from dflash_exp.launch.launchers import Slurm
from dflash_exp.measured import Measured
from dflash_exp.models import check_readable
from dflash_exp.pipeline.line import Overlapped
from dflash_exp.planning import Readings, plan_document, plan_run
from dflash_exp.published import drafter_there
from dflash_exp.run_directory import begun, check_same_run
from dflash_exp.scoring import store_prompts

SPEED = "plan.speed_from=RUN predicts"


@dataclass(frozen=True)
class Asked:
    """One run, as far as the question goes."""

    named: str
    """In messages: what the user typed for it."""
    config: Config
    measured: Measured | None
    """Of the run that `plan.speed_from` names."""


@dataclass(frozen=True)
class Prospect:
    """What a submission is, and at most takes."""

    n_runs: int
    n_jobs: int
    gpus: int
    """Of a job, all nodes together."""
    gpus_used: int
    """Of these, by its runs."""
    hours: float
    """Of a job."""
    gpu_hours: float
    """Of all jobs."""
    basis: str

    def said(self) -> str:
        """In one line."""
        runs = f"{self.n_runs} run{'s' * (self.n_runs > 1)} in {self.n_jobs} job{'s' * (self.n_jobs > 1)}"
        if self.gpus == 0:
            return f"{runs} x {self.hours:.3g} h without GPUs ({self.basis})"
        return f"{runs} x {self.gpus} GPUs x {self.hours:.3g} h = {self.gpu_hours:,.3g} GPU-hours ({self.basis})"

    def idle(self) -> str | None:
        """In one line, the GPUs that would be paid for and not used; None where all are."""
        if self.gpus_used >= self.gpus:
            return None
        mend = "hydra.launcher.packed shares a node among runs of one GPU; topology.ranks_per_node gives a run more"
        return f"each job uses {self.gpus_used} of its {self.gpus} GPUs: {mend}"


def prospect(runs: Sequence[Asked], launcher: Slurm) -> Prospect:
    """Raises ValueError, one line, for what would not do."""
    topology, read = runs[0].config.topology, Readings()
    predicted = [hours for run in runs if (hours := _hours(run, launcher, topology, read)) is not None]
    n_jobs, limit_h = -(-len(runs) // launcher.packed), launcher.timeout_min / 60
    gpus, known = topology.nodes * launcher.gpus_per_node, len(predicted) == len(runs)
    hours = [float(one["run"]) for one in predicted]
    found = Prospect(
        n_runs=len(runs),
        n_jobs=n_jobs,
        gpus=gpus,
        gpus_used=topology.nodes * gpus_needed(topology, launcher) * launcher.packed,
        hours=max(hours) if known else limit_h,
        gpu_hours=gpus * (sum(hours) / launcher.packed if known else n_jobs * limit_h),
        basis=f"predicted {predicted[0]['basis']}" if known else f"at most, by hydra.launcher.timeout_min; {SPEED}",
    )
    most = launcher.max_gpu_hours
    if most is not None and found.gpu_hours > most:
        raise ValueError(
            f"hydra.launcher.max_gpu_hours={most:g} must not be exceeded, got {found.said()}; ask for less"
        )
    return found


def gpus_needed(topology: Topology, launcher: Slurm) -> int:
    """By one run on each of its nodes."""
    if topology.device is Device.cpu or (topology.device is Device.auto and launcher.gpus_per_node == 0):
        return 0
    return topology.ranks_per_node * (1 + topology.target_devices)


def _hours(run: Asked, launcher: Slurm, topology: Topology, read: Readings) -> dict[str, Any] | None:
    """Checks one run; what plan.json says of its hours, None without a basis. Raises ValueError."""
    try:
        _check_shape(run.config.topology, launcher, topology)
        return _checked(run, launcher, read)
    except ValueError as error:
        raise ValueError(f"{error} (of {run.named})") from error


def _check_shape(topology: Topology, launcher: Slurm, first: Topology) -> None:
    if (topology.nodes, topology.ranks_per_node) != (first.nodes, first.ranks_per_node):
        raise ValueError(
            f"jobs of one array must have the same nodes and ranks, got {topology.nodes} x {topology.ranks_per_node} "
            f"beside {first.nodes} x {first.ranks_per_node}; submit them apart"
        )
    if launcher.nodes is not None and launcher.nodes != topology.nodes:
        raise ValueError(
            f"hydra.launcher.nodes must be topology.nodes, got {launcher.nodes} and {topology.nodes}; set the latter"
        )
    if launcher.packed > 1 and topology.n_ranks > 1:
        raise ValueError(
            f"hydra.launcher.packed must be 1 for a run of several ranks, got {launcher.packed} for "
            f"{topology.n_ranks}; leave it out"
        )
    needed, there = gpus_needed(topology, launcher), launcher.gpus_per_node // launcher.packed
    if needed > there:
        raise ValueError(
            f"topology {topology.name} must find its GPUs on a node, got {there} for {needed}; "
            f"say hydra.launcher.gpus_per_node={needed * launcher.packed}, or a smaller topology"
        )


def _checked(run: Asked, launcher: Slurm, read: Readings) -> dict[str, Any] | None:
    """What the run itself would check as it begins, and whether it can without a network and in time."""
    config = run.config
    check_topology(config.topology, config.batches_per_step, overlapped=isinstance(config.pipeline, Overlapped))
    check_readable(config.target)
    if config.drafter.init_from is not None:
        drafter_there(Path(config.drafter.init_from))
    planned, run_dir = plan_run(config, read), Path(config.run_dir or "")
    if begun(run_dir):
        check_same_run(run_dir, plain(config), planned.hashes(), defaults(config))
    document = plan_document(config, planned, run.measured)
    if config.evaluate:
        store_prompts(config.data, config.prompts.limit)
    memory, gpu_gb = document["memory_bytes"], launcher.gpu_memory_gb
    if memory is not None and gpu_gb is not None and memory["largest_device"] > gpu_gb * 1e9:
        raise ValueError(
            f"hydra.launcher.gpu_memory_gb must hold a rank's peak, predicted {memory['largest_device'] / 1e9:.1f} GB "
            f"for {gpu_gb:g}; lower batches.budget_tokens, drafter.slots_per_pass or pipeline.features_bytes"
        )
    if document["hours"] is None:
        return None
    hours, limit_h = float(document["hours"]["run"]), launcher.timeout_min / 60 * (1 + launcher.max_requeues)
    if hours > limit_h:
        raise ValueError(
            f"hydra.launcher.timeout_min and max_requeues must allow for the run, predicted {hours:.1f} h for "
            f"{limit_h:.1f}; raise one of them"
        )
    return document["hours"]
