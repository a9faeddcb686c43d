"""The run directory: made once, never overwritten; the files that say what a run is.

In: the resolved configuration and the first epoch's plan. Out: `config.yaml`, `overrides.yaml`, `environment.json`,
`plan.json`, later `result.json` and `evaluation.json`, each whole or not there.
"""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch
import yaml

from dflash_exp.checkpoint import write_whole

PACKAGES = (
    "dflash-exp",
    "torch",
    "transformers",
    "numpy",
    "hydra-core",
    "omegaconf",
    "pyarrow",
    "safetensors",
    "tokenizers",
)


def finished(run_dir: Path) -> bool:
    """Whether a run ended here as it should."""
    path = run_dir / "result.json"
    return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["status"] == "finished"


def free_directory(wanted: Path) -> Path:
    """`wanted`, or the first of wanted-2, wanted-3, ... that is not taken."""
    return _free(wanted, "")


def free_file(wanted: Path) -> Path:
    """`wanted` (x.json), or the first of x-2.json, x-3.json, ... that is not taken."""
    return _free(wanted.with_suffix(""), wanted.suffix)


def create(run_dir: Path, config: dict[str, object], overrides: list[str], plan: dict[str, object]) -> None:
    """Make the directory and write what is known before the first step."""
    run_dir.mkdir(parents=True)
    (run_dir / "logs").mkdir()
    write_whole(run_dir / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    write_whole(run_dir / "overrides.yaml", yaml.safe_dump(overrides))
    write_json(run_dir / "environment.json", environment())
    write_json(run_dir / "plan.json", plan)


def write_json(path: Path, value: object) -> None:
    """Indented JSON, whole or not there."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def environment() -> dict[str, object]:
    """Where and with what the run is made; no environment variables, so no keys."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "git": _git_state(),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "host": platform.node(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()},
    }


def _free(stem: Path, suffix: str) -> Path:
    candidate, n = stem.with_name(f"{stem.name}{suffix}"), 1
    while candidate.exists():
        n += 1
        candidate = stem.with_name(f"{stem.name}-{n}{suffix}")
    return candidate


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state() -> dict[str, str] | None:
    """Revision and uncommitted changes of the checkout that this code runs from; None outside one."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    revision = _git(root, "rev-parse", "HEAD")
    return None if revision is None else {"revision": revision.strip(), "diff": _git(root, "diff", "HEAD") or ""}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
