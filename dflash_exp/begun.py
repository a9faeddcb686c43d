"""A folder that says what was asked for when it was begun, so that only the same command goes on there.

In: the file that says it, and what is asked for now. Out: whether the two are alike; other ones are refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_exp.config import leaves
from dflash_exp.durable import UNFINISHED


def begun_alike(path: Path, asked: Mapping[str, Any], verb: str) -> bool:
    """Whether the file's folder was begun by the same command; ValueError if by another, or if other things lie there.

    `asked` is as JSON holds it; `verb` is whose `.out` the folder is.
    """
    folder = path.parent
    if not path.is_file():
        if folder.exists() and not (folder.is_dir() and _holds_nothing(folder)):
            raise ValueError(f"{verb}.out must be a new folder, {folder} holds other things; choose another one")
        return False
    before, now = leaves(json.loads(path.read_text("utf-8"))), leaves(asked)
    for key in [*now, *before]:
        if before.get(key) != now.get(key):
            raise ValueError(
                f"{verb}.out must have been begun with the same settings and input, {folder} was not: {key} was "
                f"{_short(before.get(key))} and is {_short(now.get(key))}; choose another {verb}.out"
            )
    return True


def _holds_nothing(folder: Path) -> bool:
    return all(path.name.endswith(UNFINISHED) for path in folder.iterdir())


def _short(value: object) -> str:
    """Enough of it to tell it from another."""
    said = json.dumps(value)
    return said if len(said) <= 60 else f"{said[:60]}..."
