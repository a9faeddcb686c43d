"""The run directory: made once, never overwritten; the files that say what a run is.

In: the resolved configuration and the first epoch's plan. Out: `config.yaml`, `overrides.yaml`, `plan.json`, one
`environment.json` a session, later `result.json` and `evaluation.json`, each whole or not there.
"""

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

from dflash_exp.config import leaves, within_identity
from dflash_exp.durable import write_whole
from dflash_exp.launch.code_copy import GIT
from dflash_exp.plan.epoch import plan_difference

PACKAGES = (
    "dflash-exp",
    "torch",
    "transformers",
    "numpy",
    "hydra-core",
    "wandb",
    "submitit",
    "numba",
    "rich",
    "omegaconf",
    "pyarrow",
    "safetensors",
    "tokenizers",
)


INPUTS = "inputs.json"
"""Hashes of the splits and of the target's weights: a run goes on with these alone."""
PLAN_HASHES = ("batches_sha256", "order_sha256", "plan_sha256")
AFTER_BEGINNING = ("metrics.jsonl", "checkpoints", "result.json")
"""What is not there before config.yaml is."""
SUBMITTED_ALONE = ({"submitted"}, {"submitted", "logs"})
"""What a run holds that was asked for and not yet begun."""
PUT_BACK = "put back what the run wrote, or take another run_dir"


def finished(run_dir: Path) -> bool:
    """Whether a run ended here as it should. Raises ValueError where result.json is damaged."""
    path, mend = run_dir / "result.json", "remove it, and the run's own command goes on from its newest checkpoint"
    return path.exists() and read_object(path, ("status",), mend)["status"] == "finished"


def read_object(path: Path, keys: Sequence[str], mend: str) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError, with the mend, where it is not there with these keys."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        got = "no file"
    except (OSError, ValueError) as error:
        got = f"what cannot be read ({error})"
    else:
        missing = [key for key in keys if key not in held] if isinstance(held, dict) else keys
        if not missing:
            return held
        got = f"one without {missing[0]}" if isinstance(held, dict) else f"{held!r:.40}"
    raise ValueError(f"{path} must hold a JSON object with {', '.join(keys)}, got {got}; {mend}")


def place(wanted: Path, *, force: bool) -> Path:
    """Where a run is to be: `wanted`, unless something lies there that is no run, or with `force` one that is
    finished; then the first of wanted-2, wanted-3, ... of which that does not hold."""
    return _first(wanted, "", lambda candidate: taken(candidate) or (force and finished(candidate)))


def begun(run_dir: Path) -> bool:
    """Whether a run was begun here."""
    return (run_dir / "config.yaml").is_file()


def taken(run_dir: Path) -> bool:
    """Whether something lies here that is no run, or what is left of one whose config.yaml is gone."""
    if not run_dir.is_dir():
        return run_dir.exists()
    there = {path.name for path in run_dir.iterdir()}
    if begun(run_dir) or not there or there in SUBMITTED_ALONE:
        return False
    return not (run_dir / ".lock").exists() or any((run_dir / name).exists() for name in AFTER_BEGINNING)


def free_directory(wanted: Path) -> Path:
    """`wanted`, or the first of wanted-2, wanted-3, ... that is not taken."""
    return _first(wanted, "", Path.exists)


def free_file(wanted: Path) -> Path:
    """`wanted` (x.json), or the first of x-2.json, x-3.json, ... that is not taken."""
    return _first(wanted.with_suffix(""), wanted.suffix, Path.exists)


def create(
    run_dir: Path,
    config: Mapping[str, object],
    overrides: list[str],
    plan: Mapping[str, object],
    inputs: Mapping[str, str],
) -> None:
    """Fill a new run directory with what is known before the first step; config.yaml last: with it, it is a run."""
    (run_dir / "logs").mkdir(exist_ok=True)
    write_whole(run_dir / "overrides.yaml", yaml.safe_dump(overrides))
    write_json(run_dir / "plan.json", plan)
    write_json(run_dir / INPUTS, inputs)
    write_whole(run_dir / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def note_session(run_dir: Path, where: Mapping[str, object]) -> int:
    """Write where this process runs, `environment.json` or environment-<n>.json; how many there were before."""
    path = free_file(run_dir / "environment.json")
    write_json(path, where)
    return len(list(run_dir.glob("environment*.json"))) - 1


@contextmanager
def locked(run_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make the directory and keep other processes out of it. Raises ValueError where one is at work, or where no
    directory can be."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / ".lock").touch()
    except OSError as error:
        raise ValueError(
            f"run_dir must be a directory that can be written, {run_dir} is not: {error.strerror}; name another"
        ) from error
    with (run_dir / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"run_dir must not be in use, another process trains in {run_dir}; wait for it, or name another run_dir"
            ) from error
        except OSError as error:  # a file system without locks
            say(f"{run_dir} cannot be locked ({error}): see that no other process trains in it")
        file.truncate(0)
        file.write(f"{platform.node()} {os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            if [path.name for path in run_dir.iterdir()] == [".lock"]:  # nothing was begun
                (run_dir / ".lock").unlink()
                run_dir.rmdir()


def check_same_run(
    run_dir: Path, config: Mapping[str, object], plan: Mapping[str, object], defaults: Mapping[str, object]
) -> None:
    """ValueError, naming what differs, unless the run that was begun there is the one that is wanted.

    `defaults`: what a key stands for, dotted, that the run is too old to have.
    """
    begun = {**defaults, **leaves(_configuration_there(run_dir))}
    wanted = leaves(config)
    odd = [key for key in sorted(begun.keys() | wanted.keys()) if begun.get(key) != wanted.get(key)]
    odd = [key for key in odd if within_identity(key)]
    mend = "say the same configuration to resume, or another run_dir"
    if odd:
        shown = ", ".join(f"{key} ({begun.get(key)} there, {wanted.get(key)} here)" for key in odd[:3])
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise ValueError(f"run_dir must hold this run or nothing, {run_dir} differs in {shown}{more}; {mend}")
    difference = plan_difference(planned_there(run_dir), plan)
    if difference is not None:
        raise ValueError(
            f"run_dir must hold this plan, {run_dir} differs in {difference}: the data, or the way plans are made, "
            "changed since it was begun; take the data of then, or another run_dir"
        )


def _configuration_there(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "config.yaml"
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        held = " ".join(str(error).split())
    if isinstance(held, dict) and held:
        return held
    raise ValueError(f"{path} must hold the run's configuration, got {held!r:.60}; {PUT_BACK}")


def overrides_there(run_dir: Path) -> list[str]:
    """What was typed for the run when it was begun; nothing where that cannot be read: no run depends on it."""
    try:
        held = yaml.safe_load((run_dir / "overrides.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [str(each) for each in held] if isinstance(held, list) else []


def planned_there(run_dir: Path) -> dict[str, Any]:
    """The run's plan.json. Raises ValueError where it is damaged."""
    return read_object(run_dir / "plan.json", PLAN_HASHES, PUT_BACK)


def inputs_there(run_dir: Path) -> dict[str, Any]:
    """The run's inputs.json. Raises ValueError where it is damaged."""
    return read_object(run_dir / INPUTS, ("train_sha256", "target_fingerprint"), PUT_BACK)


def check_same_inputs(run_dir: Path, inputs: Mapping[str, str]) -> None:
    """ValueError, naming what differs, unless the run was begun on the same tokens and weights."""
    before = inputs_there(run_dir)
    for key in inputs:
        if before.get(key) != inputs[key]:
            raise ValueError(
                f"run_dir must hold a run on the same inputs, {run_dir} differs in {key}: these tokens or weights "
                "changed since it was begun; take those of then, or another run_dir"
            )


def write_json(path: Path, value: object) -> None:
    """Indented JSON, whole or not there."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def environment(seeds: Mapping[str, int], threads: Mapping[str, int | None]) -> dict[str, object]:
    """Where and with what the run is made; no environment variables, so no keys."""
    intra_op, inter_op = torch.get_num_threads(), torch.get_num_interop_threads()
    return {
        **surroundings(),
        "threads": {"intra_op": intra_op, "inter_op": inter_op, **threads},
        "seeds": dict(seeds),
    }


def surroundings() -> dict[str, object]:
    """Of this process, whatever it trains."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "git": git_state(),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "host": platform.node(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _first(stem: Path, suffix: str, unfit: Callable[[Path], bool]) -> Path:
    """The first of stem, stem-2, stem-3, ... that is not unfit, each with the suffix."""
    candidate, n = stem.with_name(f"{stem.name}{suffix}"), 1
    while unfit(candidate):
        n += 1
        candidate = stem.with_name(f"{stem.name}-{n}{suffix}")
    return candidate


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state() -> dict[str, str] | None:
    """Revision, uncommitted changes and names of untracked files of the checkout that this code runs from, or was
    copied from; None outside one."""
    root = Path(__file__).parents[1]
    if (root / GIT).is_file():
        return json.loads((root / GIT).read_text(encoding="utf-8"))
    if not (root / ".git").exists():
        return None
    revision = _git(root, "rev-parse", "HEAD")
    if revision is None:
        return None
    untracked = _git(root, "ls-files", "--others", "--exclude-standard") or ""
    return {"revision": revision.strip(), "diff": _git(root, "diff", "HEAD") or "", "untracked": untracked}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
