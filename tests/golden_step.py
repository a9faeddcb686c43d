"""The golden step, on which five other implementations agree: weights, inputs, and what comes of them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from dflash_exp.drafter.model import Drafter
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.messages import BatchPlan, TargetFeatures, TokenBatch

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Golden:
    drafter: Drafter
    features: TargetFeatures
    gamma: float
    expected: dict[str, Tensor]


def golden_step() -> Golden:
    """Read from `golden/`, the drafter in fp32 on the CPU."""
    config = json.loads((GOLDEN / "config.json").read_text())
    weights, inputs = load_file(GOLDEN / "weights.safetensors"), load_file(GOLDEN / "inputs.safetensors")
    draft = config["draft"]
    shape = DrafterShape(
        hidden_size=draft["hidden_size"],
        intermediate_size=draft["intermediate_size"],
        n_heads=draft["num_attention_heads"],
        n_kv_heads=draft["num_key_value_heads"],
        head_dim=draft["head_dim"],
        n_layers=draft["num_hidden_layers"],
        block_size=draft["block_size"],
        vocab_size=draft["vocab_size"],
        mask_token_id=draft["mask_token_id"],
        target_layer_ids=tuple(draft["target_layer_ids"]),
        rope_theta=draft["rope_theta"],
        rms_norm_eps=draft["rms_norm_eps"],
        n_target_layers=config["target_layers"],
    )
    drafter = Drafter(shape, weights["target.model.embed_tokens.weight"], weights["target.lm_head.weight"])
    drafter.load_state_dict({k.removeprefix("draft."): v for k, v in weights.items() if k.startswith("draft.")})
    anchors = inputs["anchors"][0]
    batch = TokenBatch(
        plan=BatchPlan(0, 0, 0, 0, 0, np.array([0])),
        tokens_BT=inputs["input_ids"],
        supervised_BT=inputs["loss_mask"].bool(),
        lengths_B=torch.tensor([inputs["input_ids"].shape[1]]),
        anchor_row_A=torch.zeros_like(anchors),
        anchor_position_A=anchors,
    )
    features = TargetFeatures(batch, inputs["hidden_states"][0])
    return Golden(drafter, features, config["gamma"], load_file(GOLDEN / "expected.safetensors"))
