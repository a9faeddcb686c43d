"""Every shape of a conversation becomes the same turns, and what is none is refused with what is wrong about it."""

from typing import Any

import pytest

from dflash_exp.data.conversation import Conversation, Empty, Malformed, Turn, conversation
from dflash_exp.data.preparation import Thinking

TURNS = (Turn("user", "Q"), Turn("assistant", "A"))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]},
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "id": 7},
        {"prompt": "Q", "response": "A"},
        {"prompt": "Q", "completion": "A"},
        {"instruction": "Q", "input": "", "output": "A"},
        {"question": "Q", "answer": "A"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, {"role": "model", "content": "A"}]},
        {"messages": None, "conversations": None, "prompt": "Q", "response": "A"},
        {"prompt": "Q", "response": "A", "tools": []},
        {"prompt": "Q", "response": "A", "tools": "[]"},
    ],
)
def test_shapes_that_say_the_same_are_the_same_conversation(row: dict[str, Any]) -> None:
    assert conversation(row) == Conversation(TURNS)


def test_an_instruction_s_input_follows_it() -> None:
    assert conversation({"instruction": "I", "input": "X", "output": "A"}).turns[0] == Turn("user", "I\n\nX")


@pytest.mark.parametrize(("reasons", "cut"), [(["length", "stop"], [1]), (["length"], [3]), ([None, "stop"], [])])
def test_the_turns_that_regenerate_cut_at_the_most_tokens_are_known_by_their_finish_reasons(
    reasons: list[str | None], cut: list[int]
) -> None:
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    found, as_ever = (
        conversation(row) for row in ({"messages": turns, "finish_reasons": reasons}, {"messages": turns})
    )
    assert [i for i, turn in enumerate(found.turns) if turn.is_cut] == cut
    assert found.digest() == as_ever.digest()


MALFORMED = {
    "not an object": ([1, 2], "a row must be an object, got a list"),
    "no known field": ({"b": 1, "a": 2}, "a row must have messages, .* or text, got a, b"),
    "turns in no list": ({"messages": "hello"}, "messages must be a list of turns, got text"),
    "a turn that is text": ({"messages": ["hello"]}, "turn 1 must be an object, got text"),
    "a turn without a role": ({"messages": [{"content": "hello"}]}, "turn 1 must have `role`, got content"),
    "a role nobody knows": (
        {"messages": [{"role": "narrator", "content": ""}]},
        "turn 1's role must be one of .*'narr",
    ),
    "content that is no text": (
        {"messages": [{"role": "user", "content": 3}]},
        "turn 1's content must be text, got a n",
    ),
    "content that is missing": ({"messages": [{"role": "user"}]}, "turn 1's content must be text, got null"),
    "tool calls": (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
        "turn 1 must be text, got tool calls",
    ),
    "a function call": (
        {"messages": [{"role": "assistant", "content": None, "function_call": {"name": "f"}}]},
        "turn 1 must be text, got tool calls",
    ),
    "tools that could be called": (
        {"prompt": "Q", "response": "A", "tools": [{}]},
        "must be without tools, .* got some",
    ),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "turn 1's content must be text, got a list",
    ),
    "no answer": ({"messages": [{"role": "user", "content": "Q"}]}, "must have an assistant turn, got none"),
    "an answer first": ({"messages": [{"role": "assistant", "content": "A"}]}, "must begin with a system or user turn"),
    "a prompt alone": ({"prompt": "Q"}, "got prompt"),
    "a response that is no text": ({"prompt": "Q", "response": ["A"]}, "response must be text, got a list"),
    "half a character": ({"text": "\ud83d"}, "text must be Unicode text, got half of a surrogate pair"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_what_is_no_conversation_is_refused_with_what_is_wrong(kind: str) -> None:
    row, said = MALFORMED[kind]
    with pytest.raises(Malformed, match=said):
        conversation(row)


@pytest.mark.parametrize(
    "row",
    [{"messages": []}, {"prompt": "Q", "response": " \n"}, {"text": " "}],
    ids=["no turns", "a blank answer", "a blank text"],
)
def test_what_has_nothing_to_learn_from_is_empty(row: dict[str, Any]) -> None:
    with pytest.raises(Empty):
        conversation(row).treated(Thinking.KEEP)


def thinking(content: str, **more: str) -> Conversation:
    return conversation(
        {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": content, **more}]}
    )


def test_reasoning_is_seen_in_marks_and_in_its_own_field() -> None:
    assert thinking("<think>why</think>\n\nA").thinks and thinking("A", reasoning_content="why").thinks
    assert not thinking("A").thinks and not thinking("<think>\n\n</think>A").thinks


def test_stripped_of_reasoning_the_answer_is_left() -> None:
    for found in (thinking("<think>\nwhy\n</think>\n\nA"), thinking("A", reasoning_content="why")):
        assert found.treated(Thinking.STRIP) == Conversation(TURNS)
        assert found.treated(Thinking.KEEP) == found
    with pytest.raises(Empty):
        thinking("<think>nothing else</think>").treated(Thinking.STRIP)


def test_a_digest_tells_who_said_what() -> None:
    said = [{"prompt": "Q", "response": "A"}, {"prompt": "QA", "response": ""}, {"prompt": "A", "response": "Q"}]
    digests = {conversation(row).digest() for row in [*said, {"text": "QA"}]}
    assert len(digests) == 4 and conversation(said[0]).digest() == Conversation(TURNS).digest()
