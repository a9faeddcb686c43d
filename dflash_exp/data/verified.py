"""Which files were found to be what their manifest says, so that large ones are not hashed at every start.

A note holds a file's hash beside its size, inode and time of change, which every write moves and nobody can set. A copy
of a store is verified once more. What a disk loses without a write is not seen: deleting `.verified.json` has all of it
hashed anew.
"""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

NOTE = ".verified.json"


def is_verified(path: Path, sha256: str) -> bool:
    """Whether this very file had that hash, and was not changed since."""
    return path.is_file() and _noted(path).get(path.name) == _state(path, sha256)


def note_verified(path: Path, sha256: str) -> None:
    """Note that it has; where the folder cannot be written, it is hashed the next time, too."""
    noted = {**_noted(path), path.name: _state(path, sha256)}
    with suppress(OSError):
        handle, unfinished = tempfile.mkstemp(".unfinished", NOTE, path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(noted, file)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path.parent / NOTE)


def _noted(path: Path) -> dict[str, list[object]]:
    try:
        noted = json.loads((path.parent / NOTE).read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _state(path: Path, sha256: str) -> list[object]:
    state = path.stat()
    return [sha256, state.st_size, state.st_ino, state.st_ctime_ns]
