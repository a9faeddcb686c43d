"""The step modules of four other implementations, each on our weights, our batch and our anchors.

In: what a step is taken with, and a folder with the drafter in the exported layout. Out: a module's parameters by the
layout's names, and its loss. Each module's sampler of anchors is replaced by one that returns ours, or there would be
nothing to compare. They are imported where they are used: none of them is installed with this package.
"""

# B sequences, T padded tokens, A anchors, V vocabulary, H hidden

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dflash_exp.bench.made_up_step import N_TARGET_LAYERS, Given


@dataclass(frozen=True)
class Peer:
    """What another implementation trains, and how."""

    parameters: dict[str, nn.Parameter]
    """By the exported layout's names."""
    loss: Callable[[], Tensor]
    """Forward: the weighted mean of token losses, times `scale`."""
    scale: float = 1.0


def automodel(given: Given, folder: Path) -> Peer:
    """NeMo AutoModel's trainer module, with sdpa."""
    core = import_module("nemo_automodel.components.speculative.dflash.core")
    drafts = import_module("nemo_automodel.components.speculative.dflash.draft_qwen3")
    draft = drafts.Qwen3DFlashDraftModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    module = core.DFlashTrainerModule(draft, attention_backend="sdpa", **_target_and_sizes(given))
    module._sample_anchor_positions = lambda *_, **__: _anchors(given)
    return Peer(dict(draft.named_parameters()), lambda: module(**_rectangle(given)).loss)


def specforge(given: Given, folder: Path) -> Peer:
    """SpecForge's online model, with sdpa."""
    family = import_module("specforge.algorithms.common.dflash_family_model")
    drafts = import_module("specforge.modeling.draft.dflash")
    draft = drafts.DFlashDraftModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    module = family.OnlineDFlashModel(draft, attention_backend="sdpa", **_target_and_sizes(given))
    module._sample_anchor_positions = lambda *_: _anchors(given)
    return Peer(dict(draft.named_parameters()), lambda: module(**_rectangle(given))[0])


def modelopt(given: Given, folder: Path) -> Peer:
    """ModelOpt's `dflash` mode on its offline path, which takes hidden states."""
    speculative = import_module("modelopt.torch.speculative")
    shape = given.drafter.shape
    base = _base_model(given)
    base.config.num_orig_hidden_layers = N_TARGET_LAYERS
    sizes = {
        "head_dim": shape.head_dim, "num_hidden_layers": shape.n_layers, "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.n_heads, "num_key_value_heads": shape.n_kv_heads,
        "target_layer_ids": list(shape.target_layer_ids),
    }  # fmt: skip
    mode = {
        "dflash_offline": True, "dflash_block_size": shape.block_size, "dflash_self_logit_distillation": False,
        "dflash_loss_objective": "decay", "dflash_loss_decay_factor": given.gamma,
        "dflash_mask_token_id": shape.mask_token_id, "dflash_use_torch_compile": False,
        "dflash_init_checkpoint": str(folder), "dflash_architecture_config": sizes,
    }  # fmt: skip
    model = speculative.convert(base, [("dflash", mode)]).train()
    model._sample_anchor_positions = lambda *_: _anchors(given)
    batch = _rectangle(given)
    inputs = {
        "input_ids": batch["input_ids"], "loss_mask": batch["loss_mask"],
        "base_model_outputs": {"aux_hidden_states": batch["hidden_states"]},
    }  # fmt: skip
    return Peer(dict(model.dflash_module.named_parameters()), lambda: model(**inputs).loss)


def speculators(given: Given, folder: Path) -> Peer:
    """speculators' draft model: sdpa, eager losses, the sequences in one packed row.

    Its labels are the most probable words of a verifier's head over hidden states. Here the hidden state of a position
    is its label, and the head one-hot rows, which costs less than a head.
    """
    core: Any = import_module("speculators.models.dflash.core")
    losses = import_module("speculators.losses")
    model = core.DFlashDraftModel(_speculators_config(given))
    state = load_file(folder / "model.safetensors")
    state |= {"embed_tokens.weight": given.drafter.embed_VH, "lm_head.weight": given.drafter.head_VH}
    left_out = model.load_state_dict(state, strict=False)
    assert not left_out.unexpected_keys, left_out
    row = _packed(given)
    model.verifier_norm, model.verifier_lm_head = nn.Identity(), _OneHot(given.drafter.shape.vocab_size)
    core.select_anchors = lambda *_: row["anchors"]
    options = {"loss_config": losses.resolve_loss_config("ce", "eager"), "gamma": given.gamma}
    options["max_anchors"] = len(row["anchors"][0])
    inputs = {name: row[name] for name in row if name != "anchors"}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Peer(trained, lambda: model(**inputs, **options)[1], _share_of_mask(given))


PEERS: dict[str, Callable[[Given, Path], Peer]] = {
    "specforge": specforge,
    "automodel": automodel,
    "modelopt": modelopt,
    "speculators": speculators,
}


class _OneHot(nn.Module):
    """A head whose most probable word is the one that the hidden state names."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, label_1S1: Tensor) -> Tensor:
        logits = torch.zeros(*label_1S1.shape[:2], self.vocabulary)
        return logits.scatter_(2, label_1S1.long(), 1.0)


def _target_and_sizes(given: Given) -> dict[str, Any]:
    """What AutoModel's module and SpecForge's, its model, take by the same names."""
    base, shape = _base_model(given), given.drafter.shape
    return {
        "target_lm_head": base.lm_head, "target_embed_tokens": base.model.embed_tokens,
        "mask_token_id": shape.mask_token_id, "block_size": shape.block_size, "loss_decay_gamma": given.gamma,
        "num_anchors": given.anchors_BA.shape[1],
    }  # fmt: skip


def _base_model(given: Given) -> Any:
    """A target of one layer with our embedding and head, frozen: nothing else of it is used."""
    transformers = import_module("transformers")
    base = transformers.Qwen3ForCausalLM(_layer_config(given, n_layers=1)).float()
    base.model.embed_tokens.weight.data.copy_(given.drafter.embed_VH)
    base.lm_head.weight.data.copy_(given.drafter.head_VH)
    return base.requires_grad_(False)


def _layer_config(given: Given, n_layers: int) -> Any:
    shape = given.drafter.shape
    return import_module("transformers").Qwen3Config(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, intermediate_size=shape.intermediate_size,
        num_hidden_layers=n_layers, num_attention_heads=shape.n_heads, num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.head_dim, rms_norm_eps=shape.rms_norm_eps, tie_word_embeddings=False, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta}, max_position_embeddings=8192,
    )  # fmt: skip


def _speculators_config(given: Given) -> Any:
    shape, layers = given.drafter.shape, _layer_config(given, given.drafter.shape.n_layers)
    layers._attn_implementation = "sdpa"
    return import_module("speculators.models.dflash").DFlashSpeculatorConfig(
        transformer_layer_config=layers, draft_vocab_size=shape.vocab_size, block_size=shape.block_size,
        aux_hidden_state_layer_ids=list(shape.target_layer_ids), mask_token_id=shape.mask_token_id,
    )  # fmt: skip


def _rectangle(given: Given) -> dict[str, Tensor]:
    batch = given.features.batch
    return {
        "input_ids": batch.tokens_BT,
        "hidden_states": given.features_BTF,
        "loss_mask": batch.supervised_BT.float(),
    }


def _anchors(given: Given) -> tuple[Tensor, Tensor]:
    """Positions and which of them count: all."""
    return given.anchors_BA, torch.ones_like(given.anchors_BA, dtype=torch.bool)


def _packed(given: Given) -> dict[str, Any]:
    """The sequences one after the other, in one row; a position's label is the next token."""
    batch = given.features.batch
    real_BT = torch.arange(batch.tokens_BT.shape[1]) < batch.lengths_B[:, None]
    tokens_P = batch.tokens_BT[real_BT]
    starts_B = batch.lengths_B.cumsum(0) - batch.lengths_B
    anchors_A = (given.anchors_BA + starts_B[:, None]).flatten()
    return {
        "hidden_states": given.features.features_PF[None],
        "input_ids": tokens_P[None],
        "loss_mask": batch.supervised_BT[real_BT].float()[None],
        "verifier_last_hidden_states": tokens_P.roll(-1).float()[None, :, None],
        "document_ids": torch.arange(len(starts_B)).repeat_interleave(batch.lengths_B)[None],
        "position_ids": torch.cat([torch.arange(n) for n in batch.lengths_B.tolist()])[None],
        "anchors": (anchors_A, torch.ones_like(anchors_A, dtype=torch.bool)),
    }


def _share_of_mask(given: Given) -> float:
    """Weight over supervised slots: speculators divides the weighted sum by the count. All slots are supervised."""
    size = given.drafter.shape.block_size
    return float(torch.exp(-torch.arange(size - 1) / given.gamma).mean())
