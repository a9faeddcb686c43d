"""A chunk becomes its raw rows, and where each of them is.

In: a `Chunk`. Out: for every row `FILE:LINE` and what JSON or Parquet gave, or what is wrong with the line.
"""

import json
from collections.abc import Iterator

from dflash_exp.data.conversation import Empty, Malformed
from dflash_exp.data.sources import Chunk


def values(chunk: Chunk) -> Iterator[tuple[str, object]]:
    """Where each row is, and what it holds; Malformed or Empty where that cannot be read."""
    if isinstance(chunk.rows, bytes):
        lines = chunk.rows.split(b"\n")
        for i, line in enumerate(lines[:-1] if lines[-1] == b"" else lines):
            yield f"{chunk.source.name}:{chunk.first + i}", _of_line(line, chunk.source.kind)
    else:
        for i, row in enumerate(chunk.rows.to_pylist()):
            yield f"{chunk.source.name}:{chunk.first + i}", row


def _of_line(line: bytes, kind: str) -> object:
    if not line.strip():
        return Empty("the line is blank")
    try:
        text = line.decode()
        return {"text": text.removesuffix("\r")} if kind == "text" else json.loads(text)
    except UnicodeDecodeError as error:
        return Malformed(f"a line must be UTF-8, byte {error.start + 1} is not")
    except (ValueError, RecursionError) as error:
        return Malformed(f"a line must be JSON, it is not: {error}")
