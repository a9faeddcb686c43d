"""Memory for features on the drafter's device, taken once: an item's place is its credit's range of bytes.

In: features and where their range begins. Out: the same numbers there, and the events that a writer must wait for. The
host never waits: credit comes back when the drafter has *launched* its work on an item, and who writes to the range
next waits, in its stream, for the event behind that work. An allocator cannot give this bound: it holds what is
launched and not done beside what is new, a whole step of batches, as the host runs ahead.
"""

from threading import Lock

import torch
from torch import Tensor

from dflash_exp.messages import Mark

ALIGNED = 512
"""Ranges begin at multiples of so many bytes, as an allocator's blocks do."""


def rounded(n_bytes: int) -> int:
    """Bytes of a range that holds so many."""
    return -(-n_bytes // ALIGNED) * ALIGNED


class FeatureArena:
    """Of one rank; its target loops write, its drafter reads."""

    def __init__(self, n_bytes: int, device: torch.device) -> None:
        self.memory = torch.empty(n_bytes, dtype=torch.uint8, device=device)
        self._lock = Lock()
        self._read: list[tuple[int, int, Mark]] = []

    @property
    def n_bytes(self) -> int:
        """All of it."""
        return len(self.memory)

    def at(self, begin: int, like: Tensor) -> Tensor:
        """A tensor like that one, not filled, in the range that begins there."""
        return self.memory[begin : begin + like.nbytes].view(like.dtype).view(like.shape)

    def read_until(self, features: Tensor, mark: Mark) -> None:
        """The drafter has read what lies in `features`, a tensor of `at`, when its device passes the mark."""
        begin = features.data_ptr() - self.memory.data_ptr()
        with self._lock:
            self._read.append((begin, begin + features.nbytes, mark))

    def before_writing(self, begin: int, n_bytes: int) -> list[Mark]:
        """What the device must have passed before the range is written; who writes there later comes after it."""
        end, met, rest = begin + n_bytes, list[Mark](), list[tuple[int, int, Mark]]()
        with self._lock:
            for low, high, mark in self._read:
                if low < end and begin < high:
                    met.append(mark)
                parts = ((low, min(high, begin)), (max(low, end), high))
                rest += [(left, right, mark) for left, right in parts if left < right]
            self._read = rest
        return met
