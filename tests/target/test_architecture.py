"""What is read from a transformers configuration, and what is refused."""

from collections.abc import Callable

import pytest
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, PreTrainedModel, Qwen3Config

from dflash_exp.architecture import TargetShape, check_rope, check_taps, decoder_layers, target_shape
from dflash_exp.target import FrozenTarget

MakeModel = Callable[..., PreTrainedModel]


def test_the_shape_holds_what_the_configuration_states(make_model: MakeModel) -> None:
    model = make_model(rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, rms_norm_eps=1e-5)
    assert target_shape(model.config) == TargetShape(
        hidden_size=32,
        n_layers=5,
        n_heads=4,
        n_kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=64,
        rms_norm_eps=1e-5,
        rope_theta=5000.0,
        tied_embeddings=False,
    )
    assert target_shape(make_model(tie_word_embeddings=True).config).tied_embeddings


def test_what_an_architecture_does_not_state_follows_from_the_rest() -> None:
    shape = target_shape(GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=64))
    assert (shape.n_layers, shape.n_kv_heads, shape.head_dim, shape.intermediate_size) == (3, 4, 8, 128)


def test_the_decoder_layers_are_found(make_model: MakeModel) -> None:
    model = make_model()
    assert decoder_layers(model) is model.model.layers


def test_the_decoder_layers_of_a_stranger_are_found_by_their_number() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=64))
    assert decoder_layers(model) is model.transformer.h


def test_lists_inside_the_layers_are_not_taken_for_them(make_model: MakeModel) -> None:
    model = make_model()
    for layer in model.model.layers:
        layer.experts = nn.ModuleList(nn.Identity() for _ in range(5))
    assert decoder_layers(model) is model.model.layers


@pytest.mark.parametrize("n_lists", [0, 2])
def test_a_model_without_one_list_of_layers_is_refused_in_one_line(make_model: MakeModel, n_lists: int) -> None:
    model = make_model()
    if n_lists == 0:
        model.model.layers = nn.ModuleList(list(model.model.layers)[:-1])
    else:
        model.model.more_layers = nn.ModuleList(nn.Identity() for _ in range(5))
    with pytest.raises(
        ValueError, match=r"^target\.path must name a model with one list of 5 decoder layers"
    ) as refused:
        FrozenTarget(model, [1])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("taps", [[], [5], [-1, 2], [3, 1], [1, 1]])
def test_taps_outside_the_target_are_refused_in_one_line(make_model: MakeModel, taps: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^drafter\.taps must be ascending layers within 0\.\.4, got .* has 5 layers"):
        FrozenTarget(make_model(), taps)
    with pytest.raises(ValueError, match=r"^drafter\.taps"):
        check_taps(taps, 5)


@pytest.mark.parametrize("config", [Qwen3Config, LlamaConfig])
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_longest_sequence_is_refused_in_one_line(config: type, kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    with pytest.raises(ValueError, match=f"^target.path .* got rope_type '{kind}'") as refused:
        check_rope(config(head_dim=8, max_position_embeddings=128, rope_parameters=rope))
    assert "\n" not in str(refused.value)


def test_a_model_in_memory_is_checked_for_its_rope_too(make_model: MakeModel) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    with pytest.raises(ValueError, match="got rope_type 'dynamic'"):
        FrozenTarget(make_model(rope_parameters=rope), [1])


def test_the_rope_base_is_that_of_full_attention() -> None:
    config = Qwen3Config(head_dim=8)
    config.rope_parameters = {
        "chunked_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    }
    assert target_shape(config).rope_theta == 1e6


def test_rope_with_fixed_frequencies_is_accepted(make_model: MakeModel) -> None:
    model = make_model(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})
    assert FrozenTarget(model, [1]).taps == (1,)


def test_a_dynamic_rope_of_one_layer_type_is_enough_to_refuse() -> None:
    fixed, dynamic = (
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2},
    )
    config = Qwen3Config(head_dim=8)
    config.rope_parameters = {"full_attention": fixed, "sliding_attention": dynamic}
    with pytest.raises(ValueError, match="got rope_type 'dynamic'"):
        check_rope(config)
