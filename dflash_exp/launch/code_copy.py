"""A copy of this package for jobs that wait: what was submitted is what runs, whatever is edited meanwhile.

In: a folder. Out: the folder in it to put on PYTHONPATH, called after the copy's content, so that jobs submitted from
unchanged code share one (14 MB, most of it the target that ships). Compiled kernels come along: their times of change
are kept, so that no job compiles them again. Code outside this package (`extensions`, libraries) is not copied.
"""

import json
import shutil
from hashlib import sha256
from pathlib import Path

from dflash_exp.durable import write_folder

PACKAGE = Path(__file__).resolve().parents[1]
GIT = "git.json"
"""Beside the copy: the state of the checkout that it was taken from, which `run_directory.git_state` reads."""


def copy_of_code(folder: Path, git: dict[str, str] | None) -> Path:
    """Copy the package unless its like is there already; raises OSError."""
    digest = sha256(json.dumps(git).encode())
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(PACKAGE).as_posix().encode())
            digest.update(path.read_bytes())
    copy = folder / f"code-{digest.hexdigest()[:12]}"

    def fill(empty: Path) -> None:
        shutil.copytree(PACKAGE, empty / PACKAGE.name)
        if git is not None:
            (empty / GIT).write_text(json.dumps(git), encoding="utf-8")

    if not copy.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        write_folder(copy, fill)
    return copy
