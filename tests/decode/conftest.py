"""A tiny random target in float64, where argmax ties do not happen, and drafters of ten lines."""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dflash_exp.target import FrozenTarget

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


def make_target(kind: str) -> FrozenTarget:
    torch.manual_seed(0)
    if kind == "llama":
        return FrozenTarget(LlamaForCausalLM(LlamaConfig(**SIZES)).double(), [0, 1])
    window = WINDOW if kind == "windowed" else {}
    return FrozenTarget(Qwen3ForCausalLM(Qwen3Config(**SIZES, **window)).double(), [0, 1])


@pytest.fixture
def target() -> FrozenTarget:
    return make_target("qwen3")


@pytest.fixture(params=["qwen3", "llama", "windowed"])
def any_target(request: pytest.FixtureRequest) -> FrozenTarget:
    return make_target(request.param)


@pytest.fixture
def prompt_P() -> Tensor:
    return torch.tensor([5, 17, 2, 40, 9])


class OracleDrafter:
    """Knows the continuation of a prompt; slot k is wrong when `is_wrong(k-th proposal ever made)` says so."""

    def __init__(self, text: Sequence[int], n_prompt: int, block_size: int, errors: Sequence[int]) -> None:
        self.block_size = block_size
        self.features: list[Tensor] = []
        self._text, self._n_prompt, self._errors = list(text), n_prompt, itertools.cycle(errors)

    def extend(self, features_TF: Tensor) -> None:
        self.features.append(features_TF)

    def propose(self, bonus: int) -> Tensor:
        n_done = sum(map(len, self.features)) - self._n_prompt + 1
        assert self._text[n_done - 1] == bonus
        draft = self._text[n_done : n_done + self.block_size - 1]
        draft += [0] * (self.block_size - 1 - len(draft))
        first_error = next(self._errors)
        return torch.tensor([(token + (k >= first_error)) % 64 for k, token in enumerate(draft)])


class RandomDrafter:
    """Guesses."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._generator = torch.Generator().manual_seed(3)

    def extend(self, features_TF: Tensor) -> None:
        assert features_TF.shape[1] == 64

    def propose(self, bonus: int) -> Tensor:
        return torch.randint(64, (self.block_size - 1,), generator=self._generator)


@pytest.fixture
def oracle() -> Callable[..., OracleDrafter]:
    return OracleDrafter


@pytest.fixture
def guesser() -> Callable[..., RandomDrafter]:
    return RandomDrafter


@pytest.fixture
def clock() -> Callable[[], float]:
    """One second passes between any two readings."""
    return itertools.count().__next__
