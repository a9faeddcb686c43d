"""The same step on a CUDA device as on the CPU."""

import pytest
import torch
import torch.nn.functional as F

from dflash_exp.drafter.flex import compiled_flex, padded_shape
from dflash_exp.drafter.model import Drafter
from dflash_exp.drafter.passes import PackedPasses, n_compiled
from dflash_exp.messages import TargetFeatures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("slots_per_pass", [10_000, 40])
def test_the_gradient_on_cuda_is_that_on_the_cpu(kit, slots_per_pass):
    features = kit.batch_of([kit.sequence(row, n) for row, n in enumerate([9, 23, 40, 17, 31])])
    here, there = kit.drafter(), kit.drafter().to("cuda")
    sums = kit.step_of(here).accumulate(features)
    on_cuda = TargetFeatures(features.batch, features.features_PF.to("cuda"))
    sums_there = kit.step_of(there, slots_per_pass=slots_per_pass).accumulate(on_cuda)
    assert float(sums_there.loss) == pytest.approx(float(sums.loss), rel=1e-12)
    assert int(sums_there.accepted) == int(sums.accepted)
    moved = {name: gradient.cpu() for name, gradient in kit.gradients_of(there).items()}
    assert kit.relative_difference(moved, kit.gradients_of(here)) < 1e-11


@pytest.mark.parametrize(
    ("dtype", "cosine", "within"), [(torch.float32, 1 - 1e-9, 1e-5), (torch.bfloat16, 0.9999, 0.01)]
)
def test_the_golden_gradient_under_flex_on_cuda_is_that_of_the_groups_on_the_cpu(kit, golden, dtype, cosine, within):
    here = kit.step_of(golden.drafter)
    here.accumulate(golden.features)
    drafter = Drafter(golden.drafter.shape, golden.drafter.embed_VH.to(dtype), golden.drafter.head_VH.to(dtype))
    drafter.load_state_dict(golden.drafter.state_dict())
    passes = PackedPasses(64, padded_shape(48, 8, 8), compiled_flex())
    there = kit.step_of(drafter.to("cuda"), passes=passes)
    assert passes.compile(drafter) == 2
    before = n_compiled()
    there.accumulate(TargetFeatures(golden.features.batch, golden.features.features_PF.to("cuda", dtype)))
    moved, expected = there.sums.gradient.cpu().double(), here.sums.gradient.double()
    assert float(F.cosine_similarity(moved, expected, dim=0)) > cosine
    assert float(moved.norm() / expected.norm()) == pytest.approx(1, abs=within)
    assert n_compiled() == before
