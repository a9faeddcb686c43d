"""Prompts of a file are asked in the words of their benchmark, and twice where the target can be told not to think."""

from copy import deepcopy
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from dflash_exp.embedded.tokenizer import ASSISTANT_ID, END_ID, USER_ID, prompt_ids, train_tokenizer
from dflash_exp.prompt_files import file_prompts

STEPS = "\nPlease reason step by step, and put your final answer within \\boxed{}."
SOLVE = "Write a solution to the following problem and make sure that it passes the tests:\n```python\ndef f():\n```"
NO_THOUGHT = "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}ab{% endif %}"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["def add(a, b): return a + b"], 270)


def prompts_file(folder: Path, *lines: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_prompt_and_messages_go_through_the_chat_template(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    turns = (
        '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]'
    )
    path = prompts_file(tmp_path, '{"prompt": "def τ():"}', f'{{"messages": {turns}}}')
    (only,) = file_prompts(path, tokenizer, None)
    one, two = (prompt.tolist() for prompt in only.prompts)
    assert one == prompt_ids(tokenizer, "def τ():")
    a, b, c = (tokenizer.convert_tokens_to_ids(letter) for letter in "abc")
    assert two == [USER_ID, a, ASSISTANT_ID, b, END_ID, USER_ID, c, ASSISTANT_ID]


def test_the_limit_is_a_number_of_prompts(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    path = prompts_file(tmp_path, *['{"prompt": "a"}'] * 3, "not read")
    assert len(file_prompts(path, tokenizer, 3)[0].prompts) == 3


@pytest.mark.parametrize("line", ["not json", "[1]", '{"text": "a"}', "3", '{"turns": []}'])
def test_a_bad_line_is_named(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, line: str) -> None:
    path = prompts_file(tmp_path, '{"prompt": "a"}', line)
    with pytest.raises(ValueError, match=r"prompts\.jsonl line 2 must be an object with `prompt` or `messages`"):
        file_prompts(path, tokenizer, None)


def test_a_file_that_is_empty_or_absent_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one prompt, got none"):
        file_prompts(prompts_file(tmp_path), tokenizer, None)
    with pytest.raises(ValueError, match="must be a JSONL file"):
        file_prompts(tmp_path / "absent.jsonl", tokenizer, None)


@pytest.mark.parametrize(
    "line, asked",
    [
        ('{"question": "2 + 2?", "answer": "#### 4"}', f"2 + 2?{STEPS}"),
        ('{"problem": "2 + 2?", "solution": "4", "level": 1}', f"2 + 2?{STEPS}"),
        ('{"task_id": "HumanEval/0", "prompt": "def f():", "entry_point": "f", "test": "assert f()"}', SOLVE),
        ('{"question_id": 81, "category": "writing", "turns": ["Write {a}.", "Again."]}', "Write {a}."),
        ('{"prompt_id": 81, "prompt": ["Write.", "Again."]}', "Write."),
        ('{"task_id": 2, "prompt": "Sum a list.", "test_list": []}', "Sum a list."),
    ],
)
def test_a_benchmark_s_row_is_asked_in_z_lab_s_words(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, line: str, asked: str
) -> None:
    ((prompt,),) = ((one.prompts) for one in file_prompts(prompts_file(tmp_path, line), tokenizer, None))
    assert prompt.tolist() == prompt_ids(tokenizer, asked)


def test_where_the_template_has_a_switch_prompts_come_with_thinking_off_and_then_on(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    switched = deepcopy(tokenizer)
    switched.chat_template = str(tokenizer.chat_template) + NO_THOUGHT
    path = prompts_file(tmp_path, '{"prompt": "a"}', '{"prompt": "b"}')
    off, on = file_prompts(path, switched, None)
    assert (off.thinking, on.thinking) == (False, True)
    assert [prompt.tolist() for prompt in on.prompts] == [prompt_ids(tokenizer, letter) for letter in "ab"]
    no_thought = tokenizer.encode("ab", add_special_tokens=False)
    assert [prompt.tolist() for prompt in off.prompts] == [[*prompt_ids(tokenizer, one), *no_thought] for one in "ab"]
    (as_it_is,) = file_prompts(path, tokenizer, None)
    assert as_it_is.thinking is None
