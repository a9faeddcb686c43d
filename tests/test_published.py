"""Drafters of other layouts are read as what they are, or refused in one line that names what is odd."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from dflash_exp.drafter.model import Drafter
from dflash_exp.export import drafter_state, layout_config, write_drafter
from dflash_exp.published import load_weights, read_shape, start_from
from tests.tiny_drafter import SHAPE, drafter_of

MATRIX = "layers.1.mlp.up_proj.weight"


@pytest.fixture
def z_lab(tmp_path: Path) -> Path:
    folder = tmp_path / "z_lab"
    folder.mkdir()
    write_drafter(folder, drafter_state(drafter_of()), layout_config(SHAPE, 256))
    return folder


@pytest.fixture
def speculators(tmp_path: Path) -> Path:
    """As speculators saves it: the layers' settings where they are not the default, entries of hidden_states, and the
    target's tables beside the weights."""
    folder = tmp_path / "speculators"
    folder.mkdir()
    layers = Qwen3Config(
        hidden_size=8, intermediate_size=12, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
        num_hidden_layers=2, vocab_size=20, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )  # fmt: skip
    stated = {
        "architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash", "block_size": 4,
        "aux_hidden_state_layer_ids": [1, 3], "draft_vocab_size": 20, "mask_token_id": 1, "projector_type": "dflash",
        "sample_from_anchor": False, "shift_label": False, "target_hidden_size": None,
        "transformer_layer_config": layers.to_diff_dict(),
        "speculators_config": {"algorithm": "dflash", "verifier": {"name_or_path": "some/target"}},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(stated))
    tables = {name: torch.ones(20, 8) for name in ("embed_tokens.weight", "lm_head.weight")}
    save_file(drafter_state(drafter_of()) | tables, folder / "model.safetensors")
    return folder


def restate(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def same(one: Drafter, two: Drafter) -> bool:
    pairs = zip(one.named_parameters(), two.named_parameters(), strict=True)
    return all(a == b and torch.equal(p, q) for (a, p), (b, q) in pairs)


def test_speculators_count_the_embedding_s_output_as_layer_0_and_have_the_target_s_tables(speculators: Path) -> None:
    shape = read_shape(speculators)
    assert shape == replace(SHAPE, n_target_layers=None)
    assert shape.target_layer_ids == (0, 2)  # entries 1 and 3 of hidden_states
    drafter = drafter_of(seed=1)
    load_weights(drafter, speculators)
    assert same(drafter, drafter_of())


def test_an_older_and_a_newer_configuration_of_z_lab_s_say_the_same(z_lab: Path) -> None:
    stated = json.loads((z_lab / "config.json").read_text())
    older = {name: value for name, value in stated.items() if name not in ("rope_parameters", "is_causal")}
    newer = {name: value for name, value in stated.items() if name not in ("rope_theta", "block_size")}
    newer["dflash_config"] = stated["dflash_config"] | {"block_size": 4}
    for told in (older, newer):
        (z_lab / "config.json").write_text(json.dumps(told))
        assert read_shape(z_lab) == SHAPE


def test_published_weights_in_bf16_arrive_in_fp32(z_lab: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in load_file(z_lab / "model.safetensors").items()}
    save_file(state, z_lab / "model.safetensors")
    drafter = drafter_of(seed=1)
    load_weights(drafter, z_lab)
    weight = drafter.get_parameter(MATRIX)
    assert weight.dtype == torch.float32 and torch.equal(weight, drafter_of().get_parameter(MATRIX).bfloat16().float())


@pytest.mark.parametrize(
    "values, line",
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types full_attention, got sliding_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0}}, "rope_type default, got yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type default, got linear"),
        ({"draft_vocab_size": 10}, "draft_vocab_size 20, got 10"),
        ({"is_causal": True}, "is_causal .*, got True"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping .*, got 30.0"),
    ],
)
def test_what_our_drafter_does_not_do_is_refused_by_name(z_lab: Path, values: dict[str, Any], line: str) -> None:
    restate(z_lab, **values)
    with pytest.raises(ValueError, match=line) as refused:
        read_shape(z_lab)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ids", [[], [2, 0], [0, 0], [-1, 2]])
def test_taps_that_are_not_ascending_layers_are_refused(z_lab: Path, ids: list[int]) -> None:
    restate(z_lab, dflash_config={"mask_token_id": 1, "target_layer_ids": ids})
    with pytest.raises(ValueError, match="must tap ascending layers of the target, from 0"):
        read_shape(z_lab)


def test_the_embedding_s_output_cannot_be_tapped(speculators: Path) -> None:
    restate(speculators, aux_hidden_state_layer_ids=[0, 3])
    with pytest.raises(ValueError, match=r"from 0, got \[-1, 2\]"):
        read_shape(speculators)


def test_a_drafter_of_the_same_shape_is_started_from_whatever_its_block(z_lab: Path, speculators: Path) -> None:
    for folder in (z_lab, speculators):
        drafter = drafter_of(replace(SHAPE, block_size=8), seed=1)
        start_from(drafter, folder)
        assert same(drafter, drafter_of())


@pytest.mark.parametrize(
    "other, line",
    [
        ({"target_layer_ids": (1, 2)}, r"target_layer_ids must be .* \(0, 2\) in .*, got \(1, 2\), layers .* from 0"),
        ({"mask_token_id": 3}, "mask_token_id must be what the drafter was trained with, 1 in .*, got 3"),
        ({"n_layers": 3}, "n_layers must be what the drafter was trained with, 2 in .*, got 3"),
        ({"rope_theta": 1e6}, "rope_theta must be .*, 500.0 in .*, got 1000000.0"),
    ],
)
def test_a_drafter_of_another_shape_is_no_start(z_lab: Path, other: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=rf"^drafter\.init_from=.*: {line}") as refused:
        start_from(drafter_of(replace(SHAPE, **other)), z_lab)
    assert "\n" not in str(refused.value)


def test_a_key_too_few_or_too_many_and_a_shape_that_config_json_does_not_state_are_refused(z_lab: Path) -> None:
    whole = load_file(z_lab / "model.safetensors")
    changed = [
        ({k: v for k, v in whole.items() if k != MATRIX}, rf"it lacks 1, first {MATRIX}"),
        (whole | {"d2t": torch.ones(20)}, "it has 1 that are none, first d2t"),
        (whole | {MATRIX: torch.ones(3, 8)}, rf"{MATRIX} must have shape \(12, 8\), got \(3, 8\)"),
    ]
    for state, line in changed:
        save_file(state, z_lab / "model.safetensors")
        with pytest.raises(ValueError, match=line) as refused:
            start_from(drafter_of(), z_lab)
        assert "\n" not in str(refused.value)
