"""Writing so that a file or folder is there whole or not at all, also after a power cut.

Everything is written under a name that begins with a dot and ends in `.unfinished`, synced, and renamed.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".unfinished"


def write_whole(path: Path, content: str | bytes, *, synced: bool = True) -> None:
    """Write a small file, text as UTF-8, so that it is there whole or as it was before; what fails leaves nothing.

    Not `synced`, that holds of everything but a power cut.
    """
    write_file(path, lambda file: file.write(content.encode() if isinstance(content, str) else content), synced=synced)


def write_file(path: Path, fill: Callable[[BinaryIO], object], *, synced: bool = True) -> None:
    """The same of a file of any size, which `fill` writes piece by piece."""
    handle, unfinished = tempfile.mkstemp(UNFINISHED, f".{path.name}-", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            if synced:
                os.fsync(handle)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    if synced:
        _sync(path.parent)


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make a new folder of what `fill` writes into the empty one it is given; what fails leaves nothing behind."""
    unfinished = Path(tempfile.mkdtemp(UNFINISHED, f".{folder.name}-", folder.parent))
    try:
        fill(unfinished)
        for path in unfinished.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
            _sync(path)
        unfinished.chmod(0o755)
        _sync(unfinished)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _sync(folder.parent)


def remove_unfinished(parent: Path) -> None:
    """Clear away what a killed process left; only where nobody else writes."""
    for path in parent.glob(f".*{UNFINISHED}"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_folder(folder: Path) -> None:
    """Out of sight at once, then gone."""
    hidden = folder.with_name(f".{folder.name}-old{UNFINISHED}")
    folder.rename(hidden)
    shutil.rmtree(hidden)


def _sync(path: Path) -> None:
    """What is in a file, or was renamed in a folder, outlives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
