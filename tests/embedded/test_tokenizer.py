"""The tokenizer that ships: its special ids, its chat template, and prompts that agree with it."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dflash_exp.embedded.tokenizer import ASSISTANT_ID, END_ID, MASK_ID, PAD_ID, USER_ID, prompt_ids, train_tokenizer

TEXTS = ["def add(a, b):\n    return a + b\n", "class Thing:\n    size = 3\n", "for x in range(3):\n    print(x)\n"]
PROMPTS = [*TEXTS, "", "  leading and trailing  ", "naïve τ ≥ 1 🙂\n", "tab\there"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS * 3, 280)


def test_special_tokens_have_the_first_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    names = ["<|pad|>", "<|mask|>", "<|user|>", "<|assistant|>", "<|end|>"]
    assert tokenizer.convert_tokens_to_ids(names) == [PAD_ID, MASK_ID, USER_ID, ASSISTANT_ID, END_ID] == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.eos_token_id) == (PAD_ID, MASK_ID, END_ID)
    assert len(tokenizer) == 280


@pytest.mark.parametrize("text", PROMPTS)
def test_a_prompt_is_what_the_chat_template_gives(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    templated: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert prompt_ids(tokenizer, text) == templated["input_ids"]


@pytest.mark.parametrize("text", PROMPTS)
def test_any_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_assistant_s_turn_and_its_end_are_marked_as_generated(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}]
    templated: Any = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    response = [*tokenizer.encode(TEXTS[1], add_special_tokens=False), END_ID]
    assert templated["input_ids"] == [*prompt_ids(tokenizer, TEXTS[0]), *response]
    assert templated["assistant_masks"] == [0] * len(prompt_ids(tokenizer, TEXTS[0])) + [1] * len(response)


def test_another_role_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(Exception, match="roles are user and assistant"):
        tokenizer.apply_chat_template([{"role": "system", "content": "x"}], tokenize=False)


def test_a_saved_tokenizer_loads_with_the_same_ids_and_template(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert loaded.chat_template == tokenizer.chat_template
    assert [prompt_ids(loaded, text) for text in PROMPTS] == [prompt_ids(tokenizer, text) for text in PROMPTS]
