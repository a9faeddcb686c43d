"""Features that are made once and kept where they fit, made anew where they do not."""

from collections.abc import Callable

from torch import Tensor

KEPT_BYTES = 512 * 2**20
"""Features that are kept from measurement to measurement."""


class KeptFeatures:
    """By the place of what they are of; first come, first kept."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}
        self._bytes = 0

    def get(self, place: int, make: Callable[[], Tensor]) -> Tensor:
        """The features of that place, by `make` unless they are kept."""
        if place in self._kept:
            return self._kept[place]
        features = make()
        if self._bytes + features.nbytes <= KEPT_BYTES:
            self._kept[place] = features
            self._bytes += features.nbytes
        return features
