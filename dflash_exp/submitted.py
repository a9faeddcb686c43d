"""What was asked of a run, frozen before it begins: whatever is edited later, this is what runs.

```
<run>/submitted/config.yaml        the resolved configuration
                overrides.yaml     what the user typed
                environment.json   git revision and diff, packages, host, command at that moment
                job.json           the queue's jobs for it, the last counts: [{job_id, launcher, ...}]
                error.txt          why the run could not even begin
```
No torch and no Hydra: the verb `status` reads it in milliseconds.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dflash_exp.durable import write_whole
from dflash_exp.suggest import ConfigError

if TYPE_CHECKING:
    from dflash_exp.config import Config

SUBMITTED = "submitted"
"""The folder's name."""


@dataclass(frozen=True)
class QueuedJob:
    """One time that a run was handed to a queue."""

    job_id: str | None
    """As the queue prints it: 123, or 123_4 of an array; None: it is being handed over, or that was broken off."""
    launcher: dict[str, Any]
    """What it was launched with, as JSON can hold it."""
    submitted_at: str
    """UTC, ISO 8601."""
    token: str
    """The comment that its job has in the queue, by which it is found where its id was never written down."""
    index: int
    """Its job's place in the array; -1: it is no array."""


def freeze(run_dir: Path, config_yaml: str, overrides: list[str], environment: Mapping[str, object]) -> None:
    """Write what is asked for, in place of what was asked for before; raises OSError."""
    folder = run_dir / SUBMITTED
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "overrides.yaml", yaml.safe_dump(overrides))
    write_whole(folder / "environment.json", json.dumps(environment, indent=1, ensure_ascii=False) + "\n")
    write_whole(folder / "config.yaml", config_yaml)


def is_submitted(run_dir: Path) -> bool:
    """Whether a run was asked for here."""
    return (run_dir / SUBMITTED / "config.yaml").is_file()


def frozen_config(run_dir: Path) -> "Config":
    """The configuration as it was when the run was asked for; raises ConfigError."""
    from dflash_exp.door import load  # and with it OmegaConf, which status has no use for

    path = run_dir / SUBMITTED / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} must hold a job's configuration, got no file; put it back as it was")
    return load(path)


def frozen_overrides(run_dir: Path) -> list[str]:
    """What the user typed for the run; raises ConfigError."""
    return read_overrides(run_dir / SUBMITTED / "overrides.yaml")


def read_overrides(path: Path) -> list[str]:
    """A file of them; raises ConfigError."""
    try:
        return list(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} must hold a list of overrides, got {error!r:.60}; put it back") from error


def note_job(run_dir: Path, job: QueuedJob) -> None:
    """Add a job to those that the run was given; raises OSError."""
    _write_jobs(run_dir, [*(one for one in jobs_of(run_dir) if one.job_id is not None), job])


def settle_job(run_dir: Path, job_id: str) -> None:
    """Write down the id of the run's last job; raises OSError."""
    *before, last = jobs_of(run_dir)
    _write_jobs(run_dir, [*before, replace(last, job_id=job_id)])


def _write_jobs(run_dir: Path, jobs: list[QueuedJob]) -> None:
    held = {"jobs": [asdict(job) for job in jobs]}
    write_whole(run_dir / SUBMITTED / "job.json", json.dumps(held, indent=1) + "\n")


def jobs_of(run_dir: Path) -> list[QueuedJob]:
    """The jobs that the run was given, none of a run that never saw a queue; raises ConfigError."""
    path = run_dir / SUBMITTED / "job.json"
    try:
        return [QueuedJob(**job) for job in json.loads(path.read_text(encoding="utf-8"))["jobs"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} must hold the run's jobs, got {error!r:.60}; put it back, or remove it") from error


def note_error(run_dir: Path, error: str) -> None:
    """Leave word of what kept the run from beginning; raises OSError."""
    write_whole(run_dir / SUBMITTED / "error.txt", f"{error}\n")


def forget_error(run_dir: Path) -> None:
    """The run is tried again."""
    (run_dir / SUBMITTED / "error.txt").unlink(missing_ok=True)


def error_of(run_dir: Path) -> str | None:
    """What kept the run from beginning, None where nothing did."""
    try:
        return (run_dir / SUBMITTED / "error.txt").read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
