"""A target whose layers lie on several devices says what it says on one, bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash_exp.layer_split import place_of, spread
from dflash_exp.messages import TokenBatch
from dflash_exp.target import FrozenTarget, TargetConfig, TargetDtype
from dflash_exp.target_loading import load_model

MakeModel = Callable[..., PreTrainedModel]
CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize("n_devices", range(2, 6))
@pytest.mark.parametrize("taps", [[0], [1, 3], [0, 2, 4]])
def test_features_are_those_of_the_target_on_one_device(
    make_model: MakeModel, batch: TokenBatch, taps: list[int], n_devices: int
) -> None:
    whole = FrozenTarget(make_model(), taps)(batch).features_PF
    parted = FrozenTarget(spread(make_model(), [CPU] * n_devices), taps)(batch).features_PF
    assert torch.equal(whole, parted)


def test_a_session_reads_and_drops_as_on_one_device(make_model: MakeModel, tokens_BT: Tensor) -> None:
    targets = [FrozenTarget(model, [1, 3]) for model in (make_model(), spread(make_model(), [CPU] * 3))]
    read = []
    for target in targets:
        session = target.session(speculative=True)
        session.read(tokens_BT[0, :6], 1)
        session.drop(2)
        read.append(session.read(tokens_BT[0, 6:], 5))
    (logits_NV, features_NF), (parted_logits_NV, parted_features_NF) = read
    assert features_NF is not None and parted_features_NF is not None
    assert torch.equal(logits_NV, parted_logits_NV) and torch.equal(features_NF, parted_features_NF)


@pytest.mark.parametrize(
    ("n_layers", "n_devices", "places"),
    [
        (5, 1, [0, 0, 0, 0, 0]), (5, 2, [0, 0, 1, 1, 1]), (5, 5, [0, 1, 2, 3, 4]), (7, 3, [0, 0, 1, 1, 2, 2, 2]),
        (8, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)  # fmt: skip
def test_consecutive_layers_share_a_device_and_the_first_has_the_fewer(
    n_layers: int, n_devices: int, places: list[int]
) -> None:
    assert [place_of(layer, n_layers, n_devices) for layer in range(n_layers)] == places


@pytest.mark.parametrize("tied", [True, False])
def test_layers_go_to_their_devices_and_the_rest_stays_on_the_first(make_model: MakeModel, tied: bool) -> None:
    model = spread(make_model(tie_word_embeddings=tied), [CPU, META])
    beyond = ("model.layers.2.", "model.layers.3.", "model.layers.4.")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor.device == (META if name.startswith(beyond) else CPU), name
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert FrozenTarget(model, [1]).device == CPU


def test_a_layer_beyond_the_first_device_is_called_with_tensors_of_its_own(
    make_model: MakeModel, tokens_BT: Tensor
) -> None:
    model = spread(make_model(), [CPU, META])
    seen: dict[int, set[torch.device]] = {}

    def note(layer: int, inputs: tuple[Tensor, ...], named: dict[str, object]) -> None:
        angles = named["position_embeddings"]
        assert isinstance(angles, tuple)
        seen[layer] = {tensor.device for tensor in (inputs[0], *angles)}

    for i in (1, 2, 4):
        model.model.layers[i].register_forward_pre_hook(
            lambda _, inputs, named, i=i: note(i, inputs, named), with_kwargs=True
        )
    with pytest.raises(NotImplementedError, match="meta"):  # which has no values to give back to the first device
        model(input_ids=tokens_BT, use_cache=False)
    assert seen == {1: {CPU}, 2: {META}, 4: {META}}


def test_features_of_every_device_come_back_to_the_first(make_model: MakeModel, batch: TokenBatch) -> None:
    with pytest.raises(NotImplementedError, match="copy out of meta"):
        FrozenTarget(spread(make_model(), [CPU, META]), [1, 3])(batch)


def test_a_target_is_loaded_onto_its_devices(make_model: MakeModel, tmp_path: Path, batch: TokenBatch) -> None:
    make_model().save_pretrained(tmp_path)
    config = TargetConfig(str(tmp_path), TargetDtype.FLOAT32, layer_split=2)
    assert load_model(config, [CPU, META]).model.layers[4].mlp.up_proj.weight.device == META
    parted, whole = (FrozenTarget(load_model(config, [CPU] * n), [1, 3])(batch) for n in (2, 1))
    assert torch.equal(parted.features_PF, whole.features_PF)


def test_more_devices_than_layers_are_refused_in_one_line(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match=r"^target\.layer_split must be at most the target's layers, got 6 for 5; "):
        spread(make_model(), [CPU] * 6)
    with pytest.raises(ValueError, match=r"^target\.layer_split must be >= 1, got 0; 1 keeps a copy on one device$"):
        TargetConfig("embedded", TargetDtype.FLOAT32, layer_split=0)
