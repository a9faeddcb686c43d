"""Ranges of a bounded memory, taken one behind the other, around its end to its beginning, and given back.

In: sizes, in the order of taking. Out: where each begins. Whole numbers only: a range never overlaps one that is not
given back. What is taken in plan order is given back in nearly that order, so a ring serves, without searching; the
price is that a range does not wrap, so that what is left before the end stays free for once. Ranges of a third of the
memory at most always find room while one other is taken.
"""


class Ring:
    """Of so many bytes."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes
        self._end: dict[int, int] = {}  # by the beginning, in the order of taking

    def place(self, n_bytes: int) -> int | None:
        """Where a range of so many bytes (>= 1) would begin now; None: there is no room."""
        if not self._end:
            return 0 if n_bytes <= self._n_bytes else None
        oldest, newest = next(iter(self._end)), next(reversed(self._end))
        behind = self._end[newest]
        if newest < oldest:  # it has gone around: free up to the oldest
            return behind if behind + n_bytes <= oldest else None
        if behind + n_bytes <= self._n_bytes:
            return behind
        return 0 if n_bytes <= oldest else None

    def take(self, n_bytes: int) -> int:
        """Where the range begins; there is room, as `place` said."""
        begin = self.place(n_bytes)
        assert begin is not None, "asked for before it was taken"
        self._end[begin] = begin + n_bytes
        return begin

    def give_back(self, begin: int) -> None:
        """The range that begins there; between two that are taken it stays unused until one of them is given back."""
        del self._end[begin]
