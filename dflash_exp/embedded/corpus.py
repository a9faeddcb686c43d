"""The standard library as conversations: a function's context, signature and docstring ask; its body answers.

In: the folder of a Python's standard library (PSF licence). Out: `Function` records, and from each a prompt of a
wanted length: the function's signature and docstring, preceded by as many of the file's earlier functions and classes
as fit. So a prompt's length is a choice and its text is real code. Files, not functions, are split into train, probe
and prompts, by a hash of their name.
"""

import ast
import hashlib
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SKIPPED = ("site-packages", "pydoc_data", "encodings", "idlelib", "lib2to3", "turtledemo", "ensurepip", "__pycache__")
"""Folders left out: tables, bundled wheels, and one grammar's fixtures."""


@dataclass(frozen=True)
class Function:
    """One function or method of one file."""

    file: str
    """Path under the library's folder, with forward slashes."""
    start: int
    """Line of its first decorator or `def`, from 0."""
    body: int
    """Line of the first statement after the docstring, from 0."""
    end: int
    """Line after its last, from 0."""
    openings: tuple[int, ...]
    """Lines at which a context for it may begin: earlier functions and classes of the file, ascending."""
    is_test: bool


@dataclass(frozen=True)
class Exchange:
    """A prompt and the response that the library itself gives."""

    prompt: str
    response: str


def split_of(file: str) -> str:
    """train, probe or prompts, by the file's name: about 78, 10 and 12 percent of the files."""
    share = int.from_bytes(hashlib.sha256(file.encode()).digest()[:4], "big") / 2**32
    return "prompts" if share < 0.12 else "probe" if share < 0.22 else "train"


def library_files(root: Path) -> Iterator[tuple[str, str]]:
    """Every readable source file: (name, text), sorted by name, so that the corpus is the same wherever it is read."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(part in SKIPPED for part in name.split("/")):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield name, text.expandtabs(4)


def functions_of(file: str, text: str) -> list[Function]:
    """Functions and methods whose body is more than a docstring, in the order of the file."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    found: list[Function] = []
    openings: list[int] = []
    is_test = any(part in ("test", "tests") or part.startswith("test_") for part in file.split("/"))
    for node in _definitions(tree.body):
        start = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        if not isinstance(node, ast.ClassDef):
            rest = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if rest and node.end_lineno and rest[0].lineno - 1 > node.lineno - 1:
                found.append(
                    Function(file, start, _body_line(node, rest[0]), node.end_lineno, tuple(openings), is_test)
                )
        openings.append(start)
    return found


def exchange(lines: list[str], function: Function, opening: int) -> Exchange:
    """Text from line `opening` to the end of the function, dedented as one, and cut where the body begins."""
    text = textwrap.dedent("\n".join(lines[opening : function.end]) + "\n")
    kept = text.split("\n")
    n_prompt = function.body - opening
    return Exchange("\n".join(kept[:n_prompt]) + "\n", "\n".join(kept[n_prompt:]).rstrip() + "\n")


def _definitions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node
            yield from _definitions(node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _body_line(node: ast.FunctionDef | ast.AsyncFunctionDef, first: ast.stmt) -> int:
    """Comments between the docstring and the first statement belong to the body."""
    before = node.body[0].end_lineno if node.body[0] is not first else None
    if before is not None:
        return before
    decorators = (
        first.decorator_list if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []
    )
    return min([first.lineno, *(d.lineno for d in decorators)]) - 1
