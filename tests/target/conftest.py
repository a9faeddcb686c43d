"""Tiny random causal LMs of two architectures, and batches for them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from dflash_exp.messages import BatchPlan, TokenBatch

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}


def tiny_qwen3(dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**{**SIZES, **changes}))
    nn.Module.to(model, dtype)
    return model


def tiny_llama(dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))
    nn.Module.to(model, dtype)
    return model


@pytest.fixture
def qwen3() -> Callable[..., PreTrainedModel]:
    return tiny_qwen3


@pytest.fixture(params=[tiny_qwen3, tiny_llama], ids=["qwen3", "llama"])
def make_model(request: pytest.FixtureRequest) -> Callable[..., PreTrainedModel]:
    return request.param


@pytest.fixture
def tokens_BT() -> Tensor:
    return torch.randint(64, (3, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def lengths_B() -> Tensor:
    return torch.tensor([11, 4, 7])


@pytest.fixture
def batch(tokens_BT: Tensor, lengths_B: Tensor) -> TokenBatch:
    plan = BatchPlan(number=0, epoch=0, step=0, bucket=0, index=0, sequence_rows=np.arange(3))
    no_anchors = torch.empty(0, dtype=torch.int64)
    return TokenBatch(plan, tokens_BT, torch.ones_like(tokens_BT, dtype=torch.bool), lengths_B, no_anchors, no_anchors)
