"""Prompts from a file, and what `evaluate` refuses before it decodes anything."""

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from dflash_exp.architecture import TargetShape
from dflash_exp.config import EvaluateOptions
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.embedded.tokenizer import ASSISTANT_ID, END_ID, USER_ID, prompt_ids, train_tokenizer
from dflash_exp.scoring import check_fits, evaluate, file_prompts
from dflash_exp.suggest import ConfigError

TARGET = TargetShape(8, 4, 2, 1, 4, 12, 20, 1e-5, 500.0, True)
SHAPE = DrafterShape(8, 12, 2, 1, 4, 1, 4, 20, 1, (0,), 500.0, 1e-5, n_target_layers=4)
NOTHING_SAID = EvaluateOptions(None, None, None, None, None, None)


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
    one, two = (prompt.tolist() for prompt in file_prompts(path, tokenizer, None))
    assert one == prompt_ids(tokenizer, "def τ():")
    a, b, c = (tokenizer.convert_tokens_to_ids(letter) for letter in "abc")
    assert two == [USER_ID, a, ASSISTANT_ID, b, END_ID, USER_ID, c, ASSISTANT_ID]


def test_the_limit_is_a_number_of_prompts(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    path = prompts_file(tmp_path, *['{"prompt": "a"}'] * 3, "not read")
    assert len(file_prompts(path, tokenizer, 3)) == 3


@pytest.mark.parametrize("line", ["not json", "[1]", '{"text": "a"}', "3"])
def test_a_bad_line_is_named(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, line: str) -> None:
    path = prompts_file(tmp_path, '{"prompt": "a"}', line)
    with pytest.raises(ValueError, match=r"prompts\.jsonl line 2 must be an object with `prompt` or `messages`"):
        file_prompts(path, tokenizer, None)


def test_a_file_that_is_empty_or_absent_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one prompt, got none"):
        file_prompts(prompts_file(tmp_path), tokenizer, None)
    with pytest.raises(ValueError, match="must be a JSONL file"):
        file_prompts(tmp_path / "absent.jsonl", tokenizer, None)


def test_a_drafter_fits_the_target_that_it_was_made_for() -> None:
    assert check_fits(SHAPE, TARGET, Path("x")) == SHAPE
    assert check_fits(replace(SHAPE, n_target_layers=None), TARGET, Path("x")) == SHAPE, "where it does not say"


@pytest.mark.parametrize("change", [{"hidden_size": 16}, {"vocab_size": 21}, {"n_layers": 5}])
def test_a_drafter_for_another_target_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"--target must have the hidden size, vocabulary and layers .*\(8, 20, 4\)"):
        check_fits(SHAPE, replace(TARGET, **change), Path("x"))


def test_a_folder_without_a_drafter_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"PATH must hold a drafter's config\.json"):
        evaluate(tmp_path, None, NOTHING_SAID)
