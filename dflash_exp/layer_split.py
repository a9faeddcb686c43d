"""A target too large for one device: its decoder layers lie on several, consecutive ones on each.

In: a causal LM and the devices. Out: the same model, spread. Embedding, rotary angles, final norm and head stay on the
first device, with the fewer layers where they do not divide: there tokens go in, and features and logits come out, so
whoever runs the model need not know. A batch goes from device to device; they are busy at once where as many target
workers have a batch under way. Every layer beyond the first device takes over the angles anew: a head's width a token,
where the layer's own weights see many times that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dflash_exp.architecture import check_layer_split, decoder_layers

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedModel


def place_of(layer: int, n_layers: int, n_places: int) -> int:
    """Which of `n_places` devices a layer lies on: as many layers on each, the fewer on the first ones."""
    return n_places - 1 - (n_layers - 1 - layer) * n_places // n_layers


def spread(model: PreTrainedModel, devices: Sequence[torch.device]) -> PreTrainedModel:
    """The model on these devices, in place. Raises ValueError for more devices than layers."""
    if len(devices) == 1:
        nn.Module.to(model, devices[0])
        return model
    layers = decoder_layers(model)
    check_layer_split(len(devices), len(layers))
    in_layers = {id(tensor) for tensor in (*layers.parameters(), *layers.buffers())}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in in_layers:
            tensor.data = tensor.data.to(devices[0])
    for number, layer in enumerate(layers):
        place = place_of(number, len(layers), len(devices))
        layer.to(devices[place])
        if place > 0:
            layer.register_forward_pre_hook(partial(_bring, devices[place]), with_kwargs=True)
    layers[-1].register_forward_hook(partial(_hand_back, devices[0]))
    return model


def _bring(device: torch.device, layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Forward pre-hook: what the layer is called with, on its device. A cache makes its own memory there."""
    return _on(device, inputs), {name: _on(device, value) for name, value in named.items()}


def _hand_back(device: torch.device, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """Forward hook of the last layer."""
    return _on(device, output)


def _on(device: torch.device, value: Any) -> Any:
    """Tensors, and tuples of them, on the device; what is neither as it is."""
    if isinstance(value, tuple):
        return tuple(_on(device, item) for item in value)
    return value.to(device) if isinstance(value, Tensor) else value
