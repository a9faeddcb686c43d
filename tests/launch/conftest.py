"""Slurm's commands as scripts of three lines: what is asked of them is kept, what they answer is a file."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class FakeSlurm:
    folder: Path

    def answers(self, command: str, answer: str, code: int = 0) -> None:
        """From now on the command prints this."""
        (self.folder / f"{command}.answer").write_text(answer)
        script = self.folder / "bin" / command
        to = " >&2" * bool(code)
        asked, answered = self.folder / f"{command}.asked", self.folder / f"{command}.answer"
        script.write_text(f'#!/bin/sh\necho "$@" >> {asked}\ncat {answered}{to}\nexit {code}\n')
        script.chmod(0o755)

    def asked(self, command: str) -> list[str]:
        """The arguments of each call."""
        path = self.folder / f"{command}.asked"
        return path.read_text().splitlines() if path.is_file() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """An idle queue that takes every job as number 7."""
    (tmp_path / "bin").mkdir()
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for command, answer in {"sbatch": "Submitted batch job 7", "squeue": "", "srun": "", "scontrol": ""}.items():
        fake.answers(command, answer)
    return fake
