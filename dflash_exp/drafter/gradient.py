"""The gradient of all parameters as one tensor, with room behind it for what else ranks add up.

In: parameters. Out: each `.grad` a view of one buffer, which a single all-reduce sums over the ranks, and which is
divided, measured, clipped and cleared as a whole.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatGradient:
    """Owns the parameters' gradients from now on; autograd adds to them in place."""

    def __init__(self, parameters: Iterable[nn.Parameter], n_behind: int) -> None:
        """Parameters of one dtype on one device; the buffer has theirs. `n_behind`: numbers behind the gradient."""
        trained = list(parameters)
        n_gradient = sum(parameter.numel() for parameter in trained)
        like = trained[0].detach()
        self.buffer = torch.zeros(n_gradient + n_behind, dtype=like.dtype, device=like.device)
        self.gradient, self.behind = self.buffer[:n_gradient], self.buffer[n_gradient:]
        for parameter, part in zip(trained, self.gradient.split([p.numel() for p in trained]), strict=True):
            parameter.grad = part.view_as(parameter)

    def norm(self) -> Tensor:
        """Global L2 norm, on the device."""
        return torch.linalg.vector_norm(self.gradient)

    def clear(self) -> None:
        """Begin the next step's sum."""
        self.buffer.zero_()
