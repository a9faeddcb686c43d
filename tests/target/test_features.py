"""What the frozen target says of a batch."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dflash_exp.forwarded import Forward
from dflash_exp.messages import TokenBatch
from dflash_exp.target import FrozenTarget

MakeModel = Callable[..., PreTrainedModel]


def hidden_states(model: PreTrainedModel, tokens_BT: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model(input_ids=tokens_BT, output_hidden_states=True, use_cache=False).hidden_states


def refuse(*_: object) -> None:
    raise AssertionError("computed beyond the deepest tap")


@pytest.mark.parametrize("taps", [[0], [1, 3], [0, 2, 4], [4]])
def test_features_are_the_hidden_states_of_transformers_bit_for_bit(
    make_model: MakeModel, batch: TokenBatch, taps: list[int]
) -> None:
    model = make_model().eval()
    entries = hidden_states(model, batch.tokens_BT)
    expected_BTF = torch.cat([entries[tap + 1] for tap in taps], dim=-1)
    expected_PF = torch.cat([expected_BTF[row, :length] for row, length in enumerate(batch.lengths_B.tolist())])

    features = FrozenTarget(model, taps)(batch)

    assert features.batch is batch
    assert torch.equal(features.features_PF, expected_PF)


def test_the_last_layers_tap_stands_after_the_final_norm(make_model: MakeModel, tokens_BT: Tensor) -> None:
    model = make_model().eval()
    seen = []
    model.model.layers[-1].register_forward_hook(lambda *call: seen.append(call[2]))
    features_PF = FrozenTarget(model, [4]).features(tokens_BT, torch.tensor([11, 11, 11]))
    assert torch.equal(features_PF, model.model.norm(seen[0]).flatten(0, 1))
    assert not torch.equal(features_PF, seen[0].flatten(0, 1))


def test_a_padded_sequence_has_the_features_it_has_alone(
    make_model: MakeModel, tokens_BT: Tensor, lengths_B: Tensor
) -> None:
    target = FrozenTarget(make_model(torch.float64), [1, 3, 4])
    together_PF = target.features(tokens_BT, lengths_B)
    lengths = lengths_B.tolist()
    alone = [target.features(tokens_BT[row : row + 1, :n], torch.tensor([n])) for row, n in enumerate(lengths)]
    torch.testing.assert_close(together_PF, torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_by_sequence_features_are_bit_for_bit_those_of_each_sequence_alone(
    make_model: MakeModel, tokens_BT: Tensor, lengths_B: Tensor
) -> None:
    model = make_model().eval()
    alone = [hidden_states(model, tokens_BT[row : row + 1, :n])[2][0] for row, n in enumerate(lengths_B.tolist())]
    assert torch.equal(FrozenTarget(model, [1], Forward.SEQUENCE).features(tokens_BT, lengths_B), torch.cat(alone))


def test_what_stands_in_the_padding_never_matters(make_model: MakeModel, tokens_BT: Tensor, lengths_B: Tensor) -> None:
    target = FrozenTarget(make_model(), [1, 3])
    before_PF = target.features(tokens_BT, lengths_B)
    padding_BT = torch.arange(11) >= lengths_B[:, None]
    assert torch.equal(before_PF, target.features(tokens_BT.masked_fill(padding_BT, 63), lengths_B))


def test_nothing_beyond_the_deepest_tap_is_computed(make_model: MakeModel, batch: TokenBatch) -> None:
    model = make_model()
    target = FrozenTarget(model, [0, 2])
    expected_PF = target(batch).features_PF
    beyond: list[nn.Module] = [*model.model.layers[3:], model.model.norm, model.lm_head]
    for module in beyond:
        module.register_forward_pre_hook(refuse)
    assert torch.equal(target(batch).features_PF, expected_PF)
    with pytest.raises(AssertionError):
        FrozenTarget(model, [3])(batch)


def test_the_head_is_never_computed_for_features(make_model: MakeModel, batch: TokenBatch) -> None:
    model = make_model()
    target = FrozenTarget(model, [4])
    expected_PF = target(batch).features_PF
    model.lm_head.register_forward_pre_hook(refuse)
    assert torch.equal(target(batch).features_PF, expected_PF)


def test_features_need_no_gradient_but_may_be_saved_for_one(make_model: MakeModel, batch: TokenBatch) -> None:
    target = FrozenTarget(make_model(), [1])
    target.model.requires_grad_(True)
    features_PF = target(batch).features_PF
    assert not features_PF.requires_grad
    projection = nn.Linear(32, 4)
    projection(features_PF).sum().backward()
    assert projection.weight.grad is not None


def test_two_threads_never_mix_their_features(make_model: MakeModel) -> None:
    target = FrozenTarget(make_model(), [1, 3])
    requests = [torch.full((1, 6), token) for token in range(2)]
    lengths_B = torch.tensor([6])
    expected = [target.features(tokens_BT, lengths_B) for tokens_BT in requests]
    both_inside = threading.Barrier(2, timeout=10)

    def meet(*_: object) -> None:
        both_inside.wait()

    # each forward waits for the other behind the first tap, so every call meets one that is half done
    target.model.get_submodule("model.layers.2").register_forward_pre_hook(meet)
    right: list[bool] = []

    def run(number: int) -> None:
        for _ in range(5):
            right.append(torch.equal(target.features(requests[number], lengths_B), expected[number]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 10


def test_an_ordinary_forward_of_a_tapped_model_is_left_alone(make_model: MakeModel, batch: TokenBatch) -> None:
    model = make_model().eval()
    before = hidden_states(model, batch.tokens_BT)
    target = FrozenTarget(model, [0, 1])
    target(batch)
    assert all(torch.equal(*pair) for pair in zip(before, hidden_states(model, batch.tokens_BT), strict=True))


def test_a_failed_forward_leaves_no_capture_behind(make_model: MakeModel, batch: TokenBatch) -> None:
    target = FrozenTarget(make_model(), [1])
    with pytest.raises(IndexError):
        target.features(torch.full((1, 3), 64), torch.tensor([3]))
    assert target.model(input_ids=batch.tokens_BT).logits.shape == (3, 11, 64)


def test_the_target_shows_its_frozen_parts(make_model: MakeModel) -> None:
    model = make_model()
    target = FrozenTarget(model, [1])
    assert target.embedding_weight_VH is model.model.embed_tokens.weight
    assert target.head_weight_VH is model.lm_head.weight
    assert target.final_norm_weight_H is model.model.norm.weight
    assert not any(parameter.requires_grad for parameter in model.parameters()) and not model.training


class PassedBy(nn.Module):
    """A layer's work without a call of it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any, **more: Any) -> Any:
        return self.layer.forward(*inputs, **more)


def test_a_model_that_passes_a_tapped_layer_by_is_refused(make_model: MakeModel, batch: TokenBatch) -> None:
    model = make_model()
    target = FrozenTarget(model, [0, 2])
    model.model.layers[0] = PassedBy(model.model.layers[0])
    with pytest.raises(ValueError, match=r"^target\.path must name a model that calls every tapped layer, .* \[0\]"):
        target(batch)
    with pytest.raises(ValueError, match=r"^target\.path must name a model that calls every tapped layer, .* \[0\]"):
        target.session(speculative=True).read(batch.tokens_BT[0], n_logits=1)
