"""The step on which SpecForge, NeMo AutoModel, ModelOpt, TorchSpec (once masked) and z-lab's module agree."""

import torch
import torch.nn.functional as F

from dflash_exp.drafter.layout import locate_anchors
from dflash_exp.drafter.model import parameter_names


def test_logits_of_the_golden_step_agree_to_1e_5(golden):
    anchors = locate_anchors(golden.features.batch, golden.drafter.shape.block_size)
    context = golden.drafter.context(golden.features.features_PF[anchors.context_rows_BT])
    hidden_ASH = golden.drafter(
        context, anchors.slice(0, len(anchors.position_A), golden.drafter.shape.n_kv_heads, torch.device("cpu"))
    )
    logits = F.linear(hidden_ASH, golden.drafter.head_VH)
    torch.testing.assert_close(logits, golden.expected["logits_pos1_to_7"][0], atol=1e-5, rtol=0)


def test_loss_and_gradients_of_the_golden_step_agree(golden, kit):
    sums = kit.step_of(golden.drafter).accumulate(golden.features)
    assert abs(float(sums.loss) / sums.weight - float(golden.expected["loss"])) < 2e-6
    gradients = {f"grad.{k.removesuffix('.weight')}": v for k, v in kit.gradients_of(golden.drafter).items()}
    for name, expected in golden.expected.items():
        if name.startswith("grad."):
            difference = (gradients[name] / sums.weight - expected).norm() / expected.norm()
            assert difference < 1e-6, (name, float(difference))


def test_the_state_dict_has_exactly_the_keys_that_engines_load(golden):
    keys = sorted(golden.drafter.state_dict())
    assert keys == parameter_names(golden.drafter.shape.n_layers)
    assert "fc.weight" in keys and "layers.1.self_attn.k_norm.weight" in keys and "layers.0.mlp.up_proj.weight" in keys
    assert len(keys) == 3 + 2 * 11
