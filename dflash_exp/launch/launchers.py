"""Where a command's runs are to run, as `hydra/launcher` says: here in turn, here side by side, or in Slurm's queue.

In: the options in `conf/hydra/launcher/`. Out: frozen settings, checked once. What is done with them stands in the
verbs; nothing here is part of a run, so that the same run can be launched another way.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class InTurn:
    """In this process, one after the other."""

    stop_at_failure: bool
    """False: a failed run does not lose the rest."""


@dataclass(frozen=True)
class Local:
    """In processes of their own on this machine."""

    n_jobs: int
    """At a time; cores and CUDA devices are shared out among them."""

    def __post_init__(self) -> None:
        _require(self.n_jobs >= 1, "n_jobs", ">= 1", self.n_jobs, "it is how many run at a time")


@dataclass(frozen=True)
class Slurm:
    """A job of Slurm's for each run, all of a sweep as one array."""

    timeout_min: int
    """Wall time of a job."""
    gpus_per_node: int
    cpus_per_task: int
    """For each rank; with `packed`, for each run."""
    memory: str | None
    """Of a node, as sbatch writes it; "0" is all of it, null what the site gives."""
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    nodes: int | None
    """Null: `topology.nodes`, which it must agree with."""
    array_parallelism: int
    """Jobs of the array that may run at a time."""
    packed: int
    """Runs of one rank that share a job's node, its CPUs and its GPUs."""
    max_requeues: int
    """How often a job that was preempted, or is out of time, goes back to the queue by itself."""
    signal_delay_s: int
    """How long before its end a job is told to stop: enough for a step and a checkpoint."""
    gpu_memory_gb: float | None
    """Of one GPU; a run that is predicted to need more is not submitted. Null: not checked."""
    max_gpu_hours: float | None
    """What all runs together may take at most, as predicted; null: any."""
    setup: list[str]
    """Lines of shell before the run: modules, environment variables."""
    sbatch: dict[str, str | None]
    """Any other option of sbatch, without its dashes: {reservation: mine}; null for one that takes no value."""
    dry_run: bool
    """Print what would be submitted."""
    wait: bool
    """Stay, with a live table, until all have ended."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            _require(vars(self)[name] >= least, name, f">= {least}", vars(self)[name], "see conf/hydra/launcher")
        _require(self.nodes is None or self.nodes >= 1, "nodes", ">= 1", self.nodes, "null takes topology.nodes")
        fits = self.packed == 1 or self.gpus_per_node == 0 or self.packed <= self.gpus_per_node
        _require(fits, "packed", f"<= gpus_per_node={self.gpus_per_node}", self.packed, "each run has a GPU of its own")
        for name in ("gpu_memory_gb", "max_gpu_hours"):
            limit = vars(self)[name]
            _require(limit is None or limit > 0, name, "> 0", limit, "null does not check it")
        told_s, limit_s = self.signal_delay_s, self.timeout_min * 60
        mend = f"a job of timeout_min={self.timeout_min} would be told to stop as it starts"
        _require(told_s < limit_s, "signal_delay_s", f"< {limit_s}", told_s, mend)
        for option in self.sbatch:
            known = re.fullmatch(r"[a-z][a-z0-9-]*", option) is not None and option not in OWN
            mend = "write it without dashes in front" if option not in OWN else f"it is ours: {OWN[option]}"
            _require(known, "sbatch", "a long option of sbatch's that is not set otherwise", option, mend)


LEAST = {
    "timeout_min": 1, "gpus_per_node": 0, "cpus_per_task": 1, "array_parallelism": 1, "packed": 1, "max_requeues": 0,
    "signal_delay_s": 1,
}  # fmt: skip
OWN = {
    "array": "a sweep is one array", "output": "logs lie in the run's directory", "error": "see logs/",
    "signal": "hydra.launcher.signal_delay_s", "requeue": "hydra.launcher.max_requeues",
    "time": "hydra.launcher.timeout_min", "nodes": "hydra.launcher.nodes", "ntasks": "topology.ranks_per_node",
    "ntasks-per-node": "topology.ranks_per_node", "cpus-per-task": "hydra.launcher.cpus_per_task",
    "gpus-per-node": "hydra.launcher.gpus_per_node", "gres": "hydra.launcher.gpus_per_node",
    "mem": "hydra.launcher.memory", "partition": "hydra.launcher.partition", "account": "hydra.launcher.account",
    "qos": "hydra.launcher.qos", "constraint": "hydra.launcher.constraint", "comment": "jobs are found by it",
    "job-name": "it is the sweep's", "chdir": "it is where the command is given", "wait": "hydra.launcher.wait",
    "open-mode": "logs go on", "wrap": "a job is a run", "test-only": "hydra.launcher.dry_run", "parsable": "we do",
    "no-requeue": "hydra.launcher.max_requeues", "gpus": "hydra.launcher.gpus_per_node",
    "gpus-per-task": "hydra.launcher.gpus_per_node", "mem-per-cpu": "hydra.launcher.memory",
}  # fmt: skip
"""Options of sbatch that other keys set."""

Launcher = InTurn | Local | Slurm


def _require(holds: bool, key: str, rule: str, value: object, mend: str) -> None:
    if not holds:
        raise ValueError(f"hydra.launcher.{key} must be {rule}, got {value}; {mend}")
