"""What is supervised is what the assistant said, token for token; where that cannot be told, nothing is guessed."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from dflash_exp.data.conversation import Conversation, Malformed, Turn
from dflash_exp.data.template import SAMPLE, Encoded, Encoder, Inexact
from dflash_exp.embedded.tokenizer import END_ID

TARGET = Path(__file__).parents[2] / "dflash_exp" / "embedded" / "files" / "target"

CHATML = (
    "{% for m in messages %}<|user|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
)
"""No marks, as Qwen3 and most others have none: `<|user|>` stands for `<|im_start|>`."""
LAST_THINKS = CHATML.replace(
    "{{ m.content }}",
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}",
)
"""As Qwen3's: the last turn is written otherwise than the same turn once others follow it."""
SHOUTING = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else m.content | upper }}")
"""An earlier answer is no prefix of the whole, nor in its own words: nothing is exact."""
ANSWERED = "{{ '%s' if m.role == 'assistant' }}"
REFUSING = "{{ raise_exception('system turns are not supported') if messages[0].role == 'system' }}" + CHATML

TALKS = [
    SAMPLE,
    Conversation((Turn("system", "Be brief."), Turn("user", "x = 1\n"), Turn("assistant", "\n\n  y = 2\n"))),
    Conversation(
        (Turn("user", "ünïcödé 日本"), Turn("assistant", "🙂 done"), Turn("user", "a"), Turn("assistant", "b"))
    ),
]


@pytest.fixture(scope="module")
def embedded() -> Any:
    return AutoTokenizer.from_pretrained(TARGET)


def with_template(template: str) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    tokenizer.chat_template = template
    return tokenizer


def encoded(tokenizer: Any, talk: Conversation, last_turn_only: bool = False) -> Encoded:
    (found,) = Encoder(tokenizer, last_turn_only).encode([talk])
    assert isinstance(found, Encoded), found
    return found


def spoken(tokenizer: Any, found: Encoded) -> list[str]:
    """The text of each run of supervised tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], found.supervised.astype(int), [0]])))
    return [tokenizer.decode(found.tokens[first:last]) for first, last in pairwise(edges.tolist())][::2]


@pytest.mark.parametrize("talk", [TALKS[0], TALKS[2]])
def test_marks_of_the_template_give_the_mask_that_transformers_gives(embedded: Any, talk: Conversation) -> None:
    messages = [turn.message() for turn in talk.turns]
    oracle = embedded.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
    found = encoded(embedded, talk)
    assert found.tokens.tolist() == oracle["input_ids"]
    assert found.supervised.astype(int).tolist() == oracle["assistant_masks"]
    assert found.ending == "eos" and found.tokens[-1] == END_ID


@pytest.mark.parametrize("talk", TALKS)
def test_without_marks_tokens_are_those_of_the_template_and_turns_those_of_the_assistant(talk: Conversation) -> None:
    tokenizer = with_template(CHATML)
    found = encoded(tokenizer, talk)
    whole = tokenizer.apply_chat_template([turn.message() for turn in talk.turns], return_dict=True)["input_ids"]
    assert found.tokens.tolist() == whole
    said = [f"{turn.content}<|end|>" for turn in talk.turns if turn.role == "assistant"]
    assert spoken(tokenizer, found) == said, "the line break behind the last token is the template's"


@pytest.mark.parametrize("talk", TALKS)
def test_what_comes_before_a_turn_is_the_prompt_that_decoding_would_give(talk: Conversation) -> None:
    tokenizer = with_template(CHATML)
    found = encoded(tokenizer, talk)
    firsts = np.flatnonzero(np.diff(np.concatenate([[0], found.supervised.astype(int)])) == 1)
    for i, first in zip([i for i, turn in enumerate(talk.turns) if turn.role == "assistant"], firsts, strict=True):
        before = [turn.message() for turn in talk.turns[:i]]
        prompt = tokenizer.apply_chat_template(before, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert found.tokens[:first].tolist() == prompt


def test_a_template_that_writes_the_last_turn_otherwise_is_still_exact() -> None:
    tokenizer = with_template(LAST_THINKS)
    assert spoken(tokenizer, encoded(tokenizer, SAMPLE)) == [
        "The first.<|end|>", "<think>\n\n</think>\n\nAnd another.<|end|>",
    ]  # fmt: skip


@pytest.mark.parametrize("blank", ["\n", " ", "\n\n  "])
@pytest.mark.parametrize("template", [LAST_THINKS, LAST_THINKS.replace("m.content }}", "m.content | trim }}")])
def test_blanks_around_an_earlier_answer_leave_it_exact_whether_the_template_keeps_them(
    template: str, blank: str
) -> None:
    turns = [Turn("user", "One?"), Turn("assistant", f"{blank}x = 1{blank}"), *SAMPLE.turns[2:]]
    tokenizer = with_template(template)
    kept = "x = 1" if "trim" in template else turns[1].content
    assert spoken(tokenizer, encoded(tokenizer, Conversation(tuple(turns))))[0] == f"{kept}<|end|>"


def test_the_template_is_asked_for_the_whole_and_for_what_comes_before_each_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    render = chat_template_utils.render_jinja_template

    def noted(conversations: Any, **more: Any) -> Any:
        asked.append(len(conversations[0]))
        return render(conversations, **more)

    monkeypatch.setattr(chat_template_utils, "render_jinja_template", noted)
    encoded(with_template(CHATML), SAMPLE)
    assert asked == [4, 1, 3]


@pytest.mark.parametrize("template", [None, CHATML, LAST_THINKS])
def test_last_turn_only_leaves_the_earlier_ones_unsupervised(embedded: Any, template: str | None) -> None:
    tokenizer = embedded if template is None else with_template(template)
    every, last = encoded(tokenizer, SAMPLE), encoded(tokenizer, SAMPLE, last_turn_only=True)
    assert every.tokens.tolist() == last.tokens.tolist()
    assert spoken(tokenizer, last) == spoken(tokenizer, every)[1:]


@pytest.mark.parametrize("template", [None, CHATML, LAST_THINKS])
def test_the_end_of_a_turn_that_was_cut_is_the_template_s_and_not_supervised(
    embedded: Any, template: str | None
) -> None:
    tokenizer = embedded if template is None else with_template(template)
    turns = [replace(turn, is_cut=i in (1, 3)) for i, turn in enumerate((*SAMPLE.turns, *SAMPLE.turns[:2]))]
    found = encoded(tokenizer, Conversation(tuple(turns)))
    said = spoken(tokenizer, found)
    assert [text.endswith("<|end|>") for text in said] == [False, False, True] and found.ending == "eos"
    assert "The first." in said[0] and "And another." in said[1]
    assert found.tokens.tolist() == encoded(tokenizer, Conversation((*SAMPLE.turns, *SAMPLE.turns[:2]))).tokens.tolist()
    last = encoded(tokenizer, Conversation(tuple(turns[:4])), last_turn_only=True)
    thought = "<think>\n\n</think>\n\n" if template == LAST_THINKS else ""
    assert spoken(tokenizer, last) == [f"{thought}And another."] and last.ending == "cap"


def test_marks_that_are_no_turns_do_not_say_which_of_them_was_cut() -> None:
    twice = "{% for m in messages %}" + 2 * "{% generation %}{{ m.content }}{% endgeneration %}<|end|>" + "{% endfor %}"
    turns = (SAMPLE.turns[0], replace(SAMPLE.turns[1], is_cut=True))
    whole, cut = Encoder(with_template(twice), False).encode([Conversation(SAMPLE.turns[:2]), Conversation(turns)])
    assert isinstance(whole, Encoded)
    assert isinstance(cut, Inexact) and str(cut) == "4 marks for 1 turns do not say which of them was cut"


def test_a_template_that_is_exact_neither_way_is_refused_with_the_turn() -> None:
    Encoder(with_template(SHOUTING), last_turn_only=True).check()
    with pytest.raises(ValueError, match=r"turn 2 is written otherwise .*'The first\.'.*prepare\.last_turn_only=true"):
        Encoder(with_template(SHOUTING), last_turn_only=False).check()


def test_a_turn_whose_first_token_begins_in_the_prompt_is_inexact() -> None:
    tokenizer = with_template(CHATML)
    merged = next(token for token in tokenizer.get_vocab() if len(token) == 2 and token.isalpha() and token.isascii())
    tokenizer.chat_template = CHATML.replace("assistant\n", merged[0]).replace("{{ m.role }}\n", ANSWERED % merged[0])
    whole, cut = (Conversation((Turn("user", "Q"), Turn("assistant", said))) for said in ("1", merged[1]))
    exact, inexact = Encoder(tokenizer, False).encode([whole, cut])
    assert isinstance(exact, Encoded) and spoken(tokenizer, exact) == ["1<|end|>"]
    assert isinstance(inexact, Inexact) and str(inexact).startswith("a token reaches over the turn's edge: ")


def test_a_conversation_that_the_template_refuses_is_malformed_and_the_others_are_not() -> None:
    found = list(Encoder(with_template(REFUSING), False).encode([SAMPLE, TALKS[1], SAMPLE]))
    assert [type(one) for one in found] == [Encoded, Malformed, Encoded]
    assert str(found[1]) == "the target's chat template refuses it: system turns are not supported"


@pytest.mark.parametrize("reach", ["{{ messages.append(1) }}", "{{ messages.__class__.mro }}"])
def test_what_a_template_may_not_touch_it_may_not_touch_the_second_time(reach: str) -> None:
    fine, bad = Encoder(with_template(CHATML), False), Encoder(with_template(CHATML + reach), False)
    assert all(isinstance(one, Encoded) for one in fine.encode([SAMPLE] * 2))
    found = list(bad.encode([SAMPLE] * 2))
    assert [type(one) for one in found] == [Malformed] * 2
    assert all("unsafe" in str(one) or "not safely callable" in str(one) for one in found)


def test_of_a_raw_text_everything_is_supervised_and_eos_follows_it(embedded: Any) -> None:
    found = encoded(embedded, Conversation((), "x = 1"))
    assert embedded.decode(found.tokens) == "x = 1<|end|>" and found.supervised.all() and found.ending == "eos"


def test_a_tokenizer_without_a_template_is_refused(embedded: Any) -> None:
    with pytest.raises(ValueError, match="must have a fast tokenizer with one chat template"):
        Encoder(with_template(None), False)  # type: ignore[arg-type]
