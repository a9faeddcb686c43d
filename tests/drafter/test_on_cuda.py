"""The same step on a CUDA device as on the CPU."""

import pytest
import torch

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
