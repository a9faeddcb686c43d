"""A file that holds one JSON array of rows becomes lines, a row each, without being in memory as a whole.

In: blocks of bytes. Out: each element's own text on one line, and where the array breaks off or goes wrong, `Damaged`.
JSON allows a line break between tokens and never within a string, so that breaks can become blanks.
"""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator

BLANK = re.compile(r"[ \t\r\n]*")
LONGEST_CUT = 8
"""Characters at a block's end that may mean another thing with what follows: `fals`, half of an escape, `1e-`."""


class Damaged(ValueError):
    """What is no array, whole."""


class _Text:
    """What is read, from where it is not used yet."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._decode = iter(blocks), getincrementaldecoder("utf-8")().decode
        self._text, self._at, self._is_whole = "", 0, False

    def first(self) -> str:
        """The next character that is no blank; "" at the end."""
        while True:
            blank = BLANK.match(self._text, self._at)
            assert blank is not None, "no blanks are blanks, too"
            self._at = blank.end()
            if self._at < len(self._text) or self._is_whole:
                return self._text[self._at : self._at + 1]
            self._read()

    def skip(self) -> None:
        """Leave the next character behind."""
        self._at += 1

    def value(self) -> str:
        """The text of the JSON value that begins here."""
        while True:
            try:
                _, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - LONGEST_CUT
                if self._is_whole or not is_cut:
                    raise Damaged(f"a JSON array must hold JSON, it does not: {error.msg}") from error
            else:
                if end <= len(self._text) - LONGEST_CUT or self._is_whole:  # a number may go on
                    text, self._at = self._text[self._at : end], end
                    return text
            self._read()

    def _read(self) -> None:
        block = next(self._blocks, b"")
        self._is_whole = not block
        try:
            self._text, self._at = self._text[self._at :] + self._decode(block, self._is_whole), 0
        except UnicodeDecodeError as error:
            raise Damaged("a JSON array must be UTF-8, it is not") from error


def is_array(head: bytes) -> bool:
    """Whether a file that begins so holds an array, not a row a line."""
    return head.lstrip()[:1] == b"["


def element_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Each element of the array in a line, newline included. Raises Damaged."""
    text = _Text(blocks)
    separator = "["
    while text.first() == separator:
        text.skip()
        if separator == "[" and text.first() == "]":
            break
        text.first()
        yield text.value().replace("\r", " ").replace("\n", " ").encode() + b"\n"
        separator = ","
    if text.first() != "]":
        raise Damaged(
            f"a JSON array must go on or end behind an element, got {text.first() or 'the end of the file'!r}"
        )
    text.skip()
    if text.first():
        raise Damaged(f"behind a JSON array there must be nothing, got {text.first()!r}")
