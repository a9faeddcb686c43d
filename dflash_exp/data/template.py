"""Conversations become tokens and a mask of what the assistant said: exactly, or not at all.

In: a `Conversation` and the target's tokenizer. Out: `Encoded`. Where the chat template marks what is generated
(`{% generation %}`), its marks say which characters are supervised. Where it does not, a turn begins where the text of
the turns before it ends with the generation prompt added, which must be a prefix of the whole text. It ends behind its
own words, as they are or without the blanks around them, and the end-of-turn token; where something else stands there,
as reasoning that the template writes, where the text of the turns up to it ends, also a prefix of the whole. What
follows the end-of-turn token is the template's, not the model's.

A character is a cut between tokens only if tokens end there, and the same tokens come out of the text before it alone:
so what the drafter is trained behind is what the target will see when it decodes. That needs no tokenising of whole
prefixes, as added tokens split a text before anything else does: from the last of them on is enough, and where one
begins is always a cut.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash_exp.data.conversation import Conversation, Malformed, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
AT_ONCE = 32
"""Texts that the tokenizer is handed at a time: what it says of a token takes 100 times the token."""
SAMPLE = Conversation(
    (Turn("user", "One?"), Turn("assistant", "The first."), Turn("user", "Two?"), Turn("assistant", "And another."))
)


class Inexact(ValueError):
    """No way to say exactly which tokens are the assistant's; the message shows the turn."""


@dataclass(frozen=True)
class Encoded:
    """A conversation as the target reads it."""

    tokens: np.ndarray
    """int32 [T]."""
    supervised: np.ndarray
    """bool [T]."""
    ending: str
    """eos, cap where the last turn was cut, or unknown."""


@dataclass(frozen=True)
class _Read:
    """A text and its tokens."""

    text: str
    encoding: Any
    """The tokenizer's own, which knows each token's characters."""
    tokens: np.ndarray
    """int32 [T]."""
    added: np.ndarray
    """Places of added tokens, ascending."""


@dataclass(frozen=True)
class _Text:
    """A conversation as text, and which of its characters are supervised."""

    text: str
    spans: tuple[tuple[int, int], ...]
    cut: tuple[bool, ...]
    """Of each span, whether its end is not what the assistant said."""


class Encoder:
    """The target's template and tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", last_turn_only: bool) -> None:
        """Raises ValueError for a tokenizer without a template, or one in Python alone, which knows no characters."""
        if not tokenizer.is_fast or not isinstance(tokenizer.chat_template, str):
            raise ValueError(
                f"target.path must have a fast tokenizer with one chat template, {tokenizer.name_or_path!r} does not; "
                "add chat_template.jinja and tokenizer.json beside it"
            )
        self._fast: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
        self._fast.no_truncation()
        self._fast.no_padding()
        self._template = tokenizer.chat_template
        # those that the template names: transformers copies all it is handed for every text
        named: dict[str, Any] = dict(tokenizer.special_tokens_map)
        self._special = {name: value for name, value in named.items() if name in self._template}
        self._eos = str(tokenizer.eos_token or "")
        self._eos_id = tokenizer.eos_token_id
        self._is_added_V = np.zeros(1 + max(tokenizer.get_vocab().values()), bool)
        self._is_added_V[list(tokenizer.added_tokens_decoder)] = True
        self._last_turn_only = last_turn_only
        _remember_what_is_safe(self._template)
        # the same few words open every turn
        self._ids_of = lru_cache(64)(lambda text: self._fast.encode(text, add_special_tokens=False).ids)
        self.marked = GENERATION.search(self._template) is not None
        """Whether the template says what is generated."""

    def check(self) -> None:
        """ValueError, with the turn, for a template whose turns cannot be told exactly."""
        (encoded,) = self.encode([SAMPLE])
        if isinstance(encoded, ValueError):
            more = "" if self._last_turn_only else ", or say prepare.last_turn_only=true"
            raise ValueError(
                f"the target's chat template must show which tokens are the assistant's: {encoded}; "
                f"mark them with {{% generation %}}{more}"
            )

    def encode(self, conversations: Sequence[Conversation]) -> Iterator[Encoded | Malformed | Inexact]:
        """For each its tokens, or why there are none: Inexact, or Malformed where the template refuses it."""
        for first in range(0, len(conversations), AT_ONCE):
            written = [self._attempt(conversation) for conversation in conversations[first : first + AT_ONCE]]
            texts = [one.text for one in written if isinstance(one, _Text)]
            encodings = iter(self._fast.encode_batch(texts, add_special_tokens=False))
            for one in written:
                yield self._encoded(one, next(encodings)) if isinstance(one, _Text) else one

    def _attempt(self, conversation: Conversation) -> _Text | Malformed | Inexact:
        from jinja2 import TemplateError

        try:
            return self._written(conversation)
        except Inexact as error:
            return error
        except TemplateError as error:
            return Malformed(f"the target's chat template refuses it: {error}")

    def _written(self, conversation: Conversation) -> _Text:
        turns = conversation.turns
        if not turns:
            text = conversation.text + self._eos
            return _Text(text, ((0, len(text)),), (False,))
        answers = [i for i, turn in enumerate(turns) if turn.role == "assistant"]
        if self.marked:
            text, found = self._rendered(turns)
            spans = [(begin, end) for begin, end in found if end > begin]
        else:
            text, _ = self._rendered(turns)
            wanted = answers[-1:] if self._last_turn_only else answers
            spans = [self._span_by_prefix(turns, i, text) for i in wanted]
        cut = [turns[i].is_cut for i in answers]
        if any(cut) and self.marked and len(spans) != len(cut):
            raise Inexact(f"{len(spans)} marks for {len(cut)} turns do not say which of them was cut")
        some = slice(-1, None) if self._last_turn_only else slice(None)
        return _Text(text, tuple(spans[some]), tuple(cut[some]) if any(cut) else (False,) * len(spans[some]))

    def _rendered(self, turns: Sequence[Turn], ask: bool = False) -> tuple[str, list[tuple[int, int]]]:
        """The text, with the generation prompt if `ask`, and where the template says that it was generated."""
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered: Any = render_jinja_template(
            conversations=[[turn.message() for turn in turns]],
            chat_template=self._template,
            return_assistant_tokens_mask=self.marked and not ask,
            add_generation_prompt=ask,
            **self._special,
        )
        (text,), spans = rendered
        return text, spans[0] if spans else []

    def _span_by_prefix(self, turns: Sequence[Turn], i: int, text: str) -> tuple[int, int]:
        opened, _ = self._rendered(turns[:i], ask=True)
        if not text.startswith(opened):
            raise Inexact(f"turn {i + 1} does not follow from the turns before it: {_shown(turns[i])}")
        for said in (turns[i].content, turns[i].content.strip()):
            if self._eos and text.startswith(said + self._eos, len(opened)):
                return len(opened), len(opened) + len(said) + len(self._eos)
        closed = text if i == len(turns) - 1 else self._rendered(turns[: i + 1])[0]
        if text.startswith(closed) and len(closed) > len(opened):
            return len(opened), len(closed)
        raise Inexact(f"turn {i + 1} is written otherwise once others follow it: {_shown(turns[i])}")

    def _encoded(self, written: _Text, encoding: Any) -> Encoded | Inexact:
        tokens = np.array(encoding.ids, np.int32)
        read = _Read(written.text, encoding, tokens, np.flatnonzero(self._is_added_V[tokens]))
        supervised = np.zeros(len(tokens), bool)
        try:
            for (begin, end), is_cut in zip(written.spans, written.cut, strict=True):
                first, last = self._cut(read, begin), self._cut(read, end)
                last = self._behind_eos(read, first, last)
                supervised[first : last - (is_cut and tokens[last - 1] == self._eos_id)] = True
        except Inexact as error:
            return error
        said = tokens[supervised]
        ends = len(said) > 0 and said[-1] == self._eos_id
        return Encoded(tokens, supervised, "eos" if ends else "cap" if any(written.cut[-1:]) else "unknown")

    def _cut(self, read: _Read, character: int) -> int:
        """How many tokens come before that character of the text; raises Inexact where it is inside one."""
        if character in (0, len(read.text)):
            return len(read.tokens) if character else 0
        cut = read.encoding.char_to_token(character)
        if cut is not None and read.encoding.token_to_chars(cut)[0] == character:
            n_added = int(read.added.searchsorted(cut))
            first = int(read.added[n_added - 1]) if n_added else 0
            beside_added = (n_added and first == cut - 1) or self._is_added_V[read.tokens[cut]]
            if beside_added or self._alone(read, first, cut):
                return cut
        around = read.text[max(0, character - 20) : character + 20]
        raise Inexact(f"a token reaches over the turn's edge: {around!r}")

    def _alone(self, read: _Read, first: int, cut: int) -> bool:
        """Whether the tokens from `first` to `cut` are those of their text alone."""
        begin, end = (read.encoding.token_to_chars(token)[0] for token in (first, cut))
        return self._ids_of(read.text[begin:end]) == read.tokens[first:cut].tolist()

    def _behind_eos(self, read: _Read, first: int, last: int) -> int:
        """Where a turn ends: behind its last eos if only blanks follow, which the model never writes."""
        ends = np.flatnonzero(read.tokens[first:last] == self._eos_id)
        if len(ends) and first + ends[-1] + 1 < last:
            behind, end = (read.encoding.token_to_chars(token)[1] for token in (first + int(ends[-1]), last - 1))
            if not read.text[behind:end].strip():
                return first + int(ends[-1]) + 1
        return last


@cache
def _remember_what_is_safe(template: str) -> None:
    """Have the template's sandbox judge an attribute once for each type and name, all that it looks at: to judge anew
    each time is 40 % of writing a conversation in Qwen3's."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # where the sandbox is kept

    environment: Any = _compile_jinja_template(template).environment
    judge, judged = environment.is_safe_attribute, dict[tuple[type, str], bool]()

    def remembered(thing: object, attribute: str, value: object) -> bool:
        key = type(thing), attribute
        if key not in judged:
            judged[key] = judge(thing, attribute, value)
        return judged[key]

    environment.is_safe_attribute = remembered


def _shown(turn: Turn) -> str:
    """Its beginning."""
    return repr(turn.content if len(turn.content) <= 60 else f"{turn.content[:60]}...")
