"""Jobs that wait run the code that was there when they were submitted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_exp.launch import code_copy
from dflash_exp.launch.code_copy import copy_of_code


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two files in place of ours."""
    package = tmp_path / "source" / "small"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    (package / "__pycache__" / "kernel.nbc").write_bytes(b"compiled")
    monkeypatch.setattr(code_copy, "PACKAGE", package)
    return package


def test_an_edit_after_the_copy_changes_nothing(package: Path, tmp_path: Path) -> None:
    copy = copy_of_code(tmp_path / "slurm", {"revision": "abc", "diff": ""})
    (package / "__init__.py").write_text("VALUE = 2\n")
    shown = [sys.executable, "-c", "import small; print(small.VALUE)"]
    said = subprocess.run(shown, env={"PYTHONPATH": str(copy)}, capture_output=True, text=True, check=True).stdout
    assert said == "1\n" and json.loads((copy / "git.json").read_text()) == {"revision": "abc", "diff": ""}
    assert (copy / "small" / "__pycache__" / "kernel.nbc").read_bytes() == b"compiled"


def test_the_same_code_is_copied_once_and_other_code_lies_beside_it(package: Path, tmp_path: Path) -> None:
    first = copy_of_code(tmp_path / "slurm", None)
    stamp = first.stat().st_mtime_ns
    (package / "__pycache__" / "kernel.nbc").write_bytes(b"compiled anew")
    assert copy_of_code(tmp_path / "slurm", None) == first and first.stat().st_mtime_ns == stamp
    (package / "__init__.py").write_text("VALUE = 2\n")
    assert copy_of_code(tmp_path / "slurm", None) != first
    assert len(list((tmp_path / "slurm").iterdir())) == 2


def test_a_run_from_a_copy_knows_the_revision_that_it_was_taken_from(tmp_path: Path) -> None:
    copy = copy_of_code(tmp_path, {"revision": "abc", "diff": "+x"})
    shown = [sys.executable, "-P", "-c", "from dflash_exp.run_directory import git_state; print(git_state())"]
    said = subprocess.run(shown, env={"PYTHONPATH": str(copy)}, capture_output=True, text=True, check=True).stdout
    assert said == "{'revision': 'abc', 'diff': '+x'}\n"
