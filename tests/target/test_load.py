"""Loading a target from disk."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from dflash_exp.target import FrozenTarget, TargetConfig, TargetDtype
from dflash_exp.target_loading import load_model

MakeModel = Callable[..., PreTrainedModel]
CPU = [torch.device("cpu")]


def float32(path: Path) -> TargetConfig:
    return TargetConfig(path=str(path), dtype=TargetDtype.FLOAT32)


def test_a_saved_target_comes_back_with_its_features(
    make_model: MakeModel, tmp_path: Path, tokens_BT: Tensor, lengths_B: Tensor
) -> None:
    model = make_model().eval()
    model.save_pretrained(tmp_path)
    target = FrozenTarget(load_model(float32(tmp_path), CPU), [1, model.config.num_hidden_layers - 2])
    with torch.no_grad():
        entries = model(input_ids=tokens_BT, output_hidden_states=True).hidden_states
    assert target.taps == (1, 3)
    assert torch.equal(target.features(tokens_BT, lengths_B)[:11], torch.cat([entries[2], entries[4]], -1)[0])


@pytest.mark.parametrize("dtype", list(TargetDtype))
def test_a_target_is_loaded_in_the_format_asked_for(make_model: MakeModel, tmp_path: Path, dtype: TargetDtype) -> None:
    make_model().save_pretrained(tmp_path)
    model = load_model(TargetConfig(path=str(tmp_path), dtype=dtype), CPU)
    assert str(model.dtype) == f"torch.{dtype.value}"


def test_pickled_weights_are_refused_in_one_line(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"^target\.path must hold a causal LM in safetensors") as refused:
        load_model(float32(tmp_path), CPU)
    assert "\n" not in str(refused.value)


def test_a_target_that_lacks_a_weight_is_refused_in_one_line(make_model: MakeModel, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1, first model\.layers\.2\.mlp\.up_proj\.weight$"):
        load_model(float32(tmp_path), CPU)


def test_a_directory_without_a_model_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^target\.path must hold a causal LM") as refused:
        load_model(float32(tmp_path), CPU)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", ["/no/such/directory", "./models/absent", "absent"])
def test_a_path_that_is_neither_directory_nor_hub_id_never_asks_the_hub(path: str) -> None:
    with pytest.raises(ValueError, match=r"^target\.path must be a directory with a model or a hub id owner/name, got"):
        load_model(TargetConfig(path=path, dtype=TargetDtype.FLOAT32), CPU)


def test_refused_rope_is_noticed_before_the_weights_are_read(make_model: MakeModel, tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    make_model(rope_parameters=rope).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="got rope_type 'dynamic'"):
        load_model(float32(tmp_path), CPU)
