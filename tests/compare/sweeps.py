"""Sweeps of run directories, written in milliseconds: what `compare` reads, with figures that are known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ANALYSIS = {
    "primary_metric": "probe/loss", "baseline": "interleave=shuffle", "contrast": "interleave=stride_jitter",
    "margin": 0.01, "seeds": 3, "differs_in": "order",
}  # fmt: skip
CLASSES = {"shuffle": "Shuffle", "stride_jitter": "StrideJitter", "diversity_first": "DiversityFirst"}
N_BUCKETS = 4


@dataclass(frozen=True)
class Job:
    """One run to be written."""

    arm: str
    seed: int
    final_loss: float
    tau: float = 2.0
    status: str | None = "finished"
    """None: killed, without a result."""
    n_records: int = 40
    config: Mapping[str, Any] | None = None
    """What else is set, by dotted key."""
    overrides: Sequence[str] | None = None
    result: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    revision: str = "a" * 40


def write_jobs(sweep_dir: Path, jobs: Sequence[Job], analysis: Mapping[str, Any] | None = ANALYSIS) -> Path:
    """A sweep's directory with sweep.json and a run of each job; without an analysis a folder of runs."""
    entries = []
    for number, job in enumerate(jobs):
        name = f"{number}-test-{job.arm}-s{job.seed}"
        overrides = list(job.overrides or (f"interleave={job.arm}", f"seed={job.seed}", "sweeps=test"))
        entries.append({"overrides": overrides, "run_dir": name})
        write_run(sweep_dir / name, job, overrides)
    if analysis is not None:
        document = {"group": "test", "analysis": dict(analysis), "jobs": entries}
        (sweep_dir / "sweep.json").write_text(json.dumps(document))
    return sweep_dir


def sweep_of(
    sweep_dir: Path, losses: Mapping[str, Sequence[float]], analysis: Mapping[str, Any] | None = ANALYSIS, **more: Any
) -> Path:
    """A finished run for each arm and final probe loss, seeds 0, 1, 2, ..."""
    jobs = [Job(arm, seed, loss, **more) for arm, own in losses.items() for seed, loss in enumerate(own)]
    return write_jobs(sweep_dir, jobs, analysis)


def write_run(run_dir: Path, job: Job, overrides: Sequence[str]) -> None:
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text(yaml.safe_dump(configuration(job)))
    (run_dir / "overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    lines = [json.dumps(record) for record in records(job)]
    (run_dir / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    plan = {"batches_sha256": f"batches{job.seed}", "lr_share": [1.0, 1.0, 1.0, 1.0], **(job.plan or {})}
    environment = {
        "command": ["dflash-exp", "train", "-m", "sweeps=test"],
        "git": {"revision": job.revision, "diff": ""},
    }
    for name, held in (("plan.json", plan), ("environment.json", environment), ("evaluation.json", evaluation(job))):
        (run_dir / name).write_text(json.dumps(held))
    if job.status is not None:
        (run_dir / "result.json").write_text(json.dumps(result(job)))


def configuration(job: Job) -> dict[str, Any]:
    """As a run freezes it, the keys that a comparison reads."""
    seeds = dict.fromkeys(("init", "data", "anchors", "order"), job.seed)
    topology = {"nodes": 1, "ranks_per_node": 1, "target_devices": 0}
    group = {"_target_": f"dflash_exp.plan.interleave.{CLASSES[job.arm]}"}
    held: dict[str, Any] = {
        "name": "test",
        "seed": job.seed,
        "seeds": seeds,
        "steps": None,
        "epochs": 1,
        "interleave": group,
        "topology": topology,
        "telemetry": {"wandb": {"group": "test"}},
        "run_dir": f"runs/{job.arm}-{job.seed}",
        "drafter": {"taps": [1, 4]},
    }
    for key, value in (job.config or {}).items():
        *groups, leaf = key.split(".")
        at = held
        for name in groups:
            at = at[name]
        at[leaf] = value
    return held


def records(job: Job) -> list[dict[str, Any]]:
    """A loss that falls from 6 to the final one, a probe every tenth step and at the end."""
    rng = np.random.default_rng((job.seed, list(CLASSES).index(job.arm)))
    orders = rng.integers(0, N_BUCKETS, size=job.n_records).tolist()
    found = []
    for step, bucket in enumerate(orders, start=1):
        loss = job.final_loss + (6 - job.final_loss) * (1 - step / job.n_records) ** 2
        own = {
            "step": step, "time_s": 0.5 * step, "train/loss": loss + 0.1 * bucket, "train/weight": 100.0 + bucket,
            "batch/buckets": [bucket], "batch/tokens": 1000, "batch/padding_share": 0.2, f"bucket/{bucket}/loss": loss,
            "pipeline/drafter_wait_s": 0.1, "pipeline/target_busy_s": 0.2, "throughput/tokens_per_s": 2000.0,
        }  # fmt: skip
        if step % max(1, job.n_records // 10) == 0 or step == job.n_records:
            own |= {
                "probe/loss": loss,
                "probe/tau_replayed": job.tau,
                "probe/bucket/0/loss": loss,
                "probe/bucket/1/loss": loss,
            }
        found.append(own)
    return found


def result(job: Job) -> dict[str, Any]:
    seed = job.seed
    hashes = {"trained_batches_sha256": f"b{seed}", "anchors_sha256": f"a{seed}", "init_sha256": f"i{seed}"}
    return {
        "status": job.status, "steps": job.n_records, "tokens": 1000 * job.n_records, "restarts": 0, "train_s": 36.0,
        **hashes, "probe_sha256": "p", "trained_order_sha256": f"o{seed}{job.arm}",
        **({"error": "RuntimeError: out of memory"} if job.status == "failed" else {}), **(job.result or {}),
    }  # fmt: skip


def evaluation(job: Job) -> dict[str, Any]:
    """Five prompts of ten verify steps."""
    rows = [{"emitted": round(10 * job.tau) + offset, "verify_steps": 10} for offset in (-4, -2, 0, 2, 4)]
    return {"tau_pooled": job.tau, "tau_macro": job.tau, "speedup": job.tau / 2, "per_prompt": rows}


def noisy(level: float, sd: float, n_seeds: int, draw: int) -> list[float]:
    """Losses around a level."""
    return (level + sd * np.random.default_rng(draw).normal(size=n_seeds)).tolist()
