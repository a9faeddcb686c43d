"""A row of the input becomes a conversation: turns of a role and a text, or a raw text.

In: what JSON or Parquet gave. Out: `Conversation`. Four shapes are known: `messages` (role, content), `conversations`
(from, value), a prompt beside its response, and `text`. Anything else is refused with what is wrong about it: tool
calls and pictures, too, which no template here is asked to write.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dflash_exp.data.preparation import Thinking

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "tool": "tool", "function": "tool",
    "observation": "tool",
}  # fmt: skip
"""What roles are called, and what templates call them."""
PAIRS = (("prompt", "response"), ("prompt", "completion"), ("instruction", "output"), ("question", "answer"))
NO_TOOLS = (None, [], "", "[]")
THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


class Malformed(ValueError):
    """A row that is no conversation; the message says why."""


class Empty(ValueError):
    """A row that is one, with nothing in it to learn from."""


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: str
    """system, user, assistant or tool."""
    content: str
    reasoning: str | None = None
    """What stood under `reasoning_content`."""
    is_cut: bool = False
    """It ends where its tokens were used up, so its end is not what the assistant said."""

    def message(self) -> dict[str, str]:
        """As a chat template takes it."""
        plain = {"role": self.role, "content": self.content}
        return plain if self.reasoning is None else {**plain, "reasoning_content": self.reasoning}


@dataclass(frozen=True)
class Conversation:
    """Turns, or a raw text where there are none."""

    turns: tuple[Turn, ...]
    text: str = ""

    @property
    def thinks(self) -> bool:
        """Whether the last assistant turn holds reasoning."""
        last = next((turn for turn in reversed(self.turns) if turn.role == "assistant"), None)
        if last is None:
            return False
        marked = THOUGHT.match(last.content)
        return bool((last.reasoning or "").strip() or (marked and marked[1].strip()))

    def treated(self, thinking: Thinking) -> "Conversation":
        """Without its reasoning where that is to be stripped; raises Empty where nothing is left to learn from."""
        turns = tuple(map(_without_reasoning, self.turns)) if thinking is Thinking.STRIP else self.turns
        if not self.text.strip() and not any(turn.content.strip() for turn in turns if turn.role == "assistant"):
            raise Empty("every assistant turn is empty" if self.turns else "the text is empty")
        return replace(self, turns=turns)

    def digest(self) -> int:
        """64 bits of blake2b over everything that is said, by whom."""
        said = [[turn.role, turn.content, turn.reasoning] for turn in self.turns]
        canonical = json.dumps([said, self.text], ensure_ascii=True, separators=(",", ":"))
        return int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=8).digest(), "little")


def _without_reasoning(turn: Turn) -> Turn:
    if turn.role != "assistant":
        return turn
    content = THOUGHT.sub("", turn.content, count=1) if THOUGHT.match(turn.content) else turn.content
    return replace(turn, content=content, reasoning=None)


def conversation(row: object) -> Conversation:
    """The conversation of a row; raises Malformed or Empty."""
    if not isinstance(row, Mapping):
        raise Malformed(f"a row must be an object, got {_kind(row)}")
    if row.get("tools") not in NO_TOOLS:
        raise Malformed("a row must be without tools, whose definitions no template here is given, got some")
    if row.get("messages") is not None:
        found = _of_turns(row["messages"], "messages", "role", "content")
        return _with_ends(found, row.get("finish_reasons"))
    if row.get("conversations") is not None:
        return _of_turns(row["conversations"], "conversations", "from", "value")
    for asked, answered in PAIRS:
        if row.get(asked) is not None and row.get(answered) is not None:
            return _of_pair(row, asked, answered)
    if row.get("text") is not None:
        return Conversation((), _text(row["text"], "text"))
    named = ", ".join(sorted(str(name) for name in row)) or "no field"
    raise Malformed(f"a row must have messages, conversations, a prompt and a response, or text, got {named}")


def _of_pair(row: Mapping[str, object], asked: str, answered: str) -> Conversation:
    prompt, more = _text(row[asked], asked), row.get("input") if asked == "instruction" else None
    if more:
        prompt = f"{prompt}\n\n{_text(more, 'input')}"
    return _checked((Turn("user", prompt), Turn("assistant", _text(row[answered], answered))))


def _of_turns(turns: object, field: str, role: str, content: str) -> Conversation:
    if not isinstance(turns, list):
        raise Malformed(f"{field} must be a list of turns, got {_kind(turns)}")
    if not turns:
        raise Empty(f"{field} is empty")
    return _checked(tuple(_turn(turn, f"turn {i}", role, content) for i, turn in enumerate(turns, 1)))


def _with_ends(found: Conversation, reasons: object) -> Conversation:
    """Where `dflash-exp regenerate` wrote the row: `finish_reasons` has a word on each of the last assistant turns."""
    if not isinstance(reasons, list):
        return found
    answers = [i for i, turn in enumerate(found.turns) if turn.role == "assistant"]
    cut = {i for i, reason in zip(reversed(answers), reversed(reasons), strict=False) if reason == "length"}
    return replace(found, turns=tuple(replace(turn, is_cut=i in cut) for i, turn in enumerate(found.turns)))


def _turn(turn: object, which: str, role: str, content: str) -> Turn:
    if not isinstance(turn, Mapping):
        raise Malformed(f"{which} must be an object, got {_kind(turn)}")
    named = turn.get(role)
    if not isinstance(named, str):
        raise Malformed(f"{which} must have `{role}`, got {', '.join(sorted(map(str, turn))) or 'no field'}")
    if named.lower() not in ROLES:
        raise Malformed(f"{which}'s {role} must be one of {', '.join(ROLES)}, got {named[:40]!r}")
    if turn.get("tool_calls") or turn.get("function_call"):
        raise Malformed(f"{which} must be text, got tool calls")
    reasoning = turn.get("reasoning_content")
    return Turn(
        ROLES[named.lower()],
        _text(turn.get(content), f"{which}'s {content}"),
        None if reasoning is None else _text(reasoning, f"{which}'s reasoning_content"),
    )


def _text(value: object, what: str) -> str:
    """A text, or a list of OpenAI's text parts put together."""
    if isinstance(value, list) and value:
        parts = [part.get("text") for part in value if isinstance(part, Mapping) and part.get("type") == "text"]
        if len(parts) == len(value):
            return "".join(_text(part, f"a part of {what}") for part in parts)
    if not isinstance(value, str):
        raise Malformed(f"{what} must be text, got {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Malformed(f"{what} must be Unicode text, got half of a surrogate pair") from None
    return value


def _checked(turns: tuple[Turn, ...]) -> Conversation:
    answers = [turn for turn in turns if turn.role == "assistant"]
    if not answers:
        raise Malformed("a conversation must have an assistant turn, got none")
    if turns[0].role == "assistant":
        raise Malformed("a conversation must begin with a system or user turn, got an assistant's")
    return Conversation(turns)


def _kind(value: object) -> str:
    """JSON's word for what it is."""
    words = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else words.get(type(value), type(value).__name__)
