"""A bounded channel whose items leave in the order of their numbers, whoever finished them first.

A sender reserves *credit* for its item before it makes it, puts the item when it is made; a receiver takes items in
order, and gives the credit back when it is done with one. Credit goes out in the order of the numbers, so what is made
out of order is inside the bound. Where bytes are bounded, credit is a range of them (`ring.py`): an item may be made in
memory that is taken once.

No deadlock: let s be the smallest number whose credit is not back. If s has credit, its sender can put it without
waiting, and the receiver takes it next. If it has none, then no number has, as credit goes out in order: the channel
is empty and whoever asks for s gets credit at once, however large the item. Somebody does ask, as each sender holds
one item at a time and they got theirs in order. Along the line the argument repeats: the last receiver waits for
nothing but items.

Three ways to end, three exceptions: the senders are done (`EndOfChannel`), the receiver wants no more
(`ChannelClosed`), another part of the line failed (`ChannelBroken`).
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Condition
from typing import Generic, TypeVar

from dflash_exp.pipeline.ring import Ring

Item = TypeVar("Item")


class EndOfChannel(Exception):
    """Everything that was sent has been taken, and nothing follows."""


class ChannelClosed(Exception):
    """The receiver wants no more."""


class ChannelBroken(Exception):
    """Another part of the line failed; its own error says why."""


@dataclass(frozen=True)
class _Credit:
    n_bytes: int
    begin: int | None


@dataclass(frozen=True)
class Statistics:
    """A channel at one moment: credit that is out, and the most there may be."""

    items: int
    capacity: int
    bytes: int


class Channel(Generic[Item]):
    """At most `capacity` items and `capacity_bytes` bytes between two loops; one item passes whatever its size."""

    def __init__(self, capacity: int, capacity_bytes: int | None = None) -> None:
        """Raises ValueError for a capacity below 1."""
        if capacity < 1 or (capacity_bytes is not None and capacity_bytes < 1):
            raise ValueError(f"a channel must hold >= 1 item and >= 1 byte, got {capacity} and {capacity_bytes}")
        self._capacity, self._capacity_bytes = capacity, capacity_bytes
        self._ring = None if capacity_bytes is None else Ring(capacity_bytes)
        self._changed = Condition()
        self._next_credit = self._next_taken = 0
        self._credits: dict[int, _Credit] = {}  # by number
        self._made: dict[int, Item] = {}
        self._n_items: int | None = None
        self._closed = self._broken = False

    def reserve(self, number: int, n_bytes: int) -> int | None:
        """Wait for the credit of item `number`: the first byte of its range; None for an item of none, one larger than
        all, and where bytes are not bounded. Raises ChannelClosed, ChannelBroken."""
        with self._changed:
            while not self._has_room(number, n_bytes):
                self._changed.wait()
            self._check_open()
            begin = self._range(n_bytes)
            self._credits[number] = _Credit(n_bytes, begin)
            self._next_credit = number + 1
            self._changed.notify_all()  # the next number may have been waiting for its turn
            return begin

    def put(self, number: int, item: Item) -> None:
        """Hand over the item that has credit; never waits. Raises ChannelClosed, ChannelBroken."""
        with self._changed:
            self._check_open()
            assert number in self._credits, f"item {number} has no credit"
            self._made[number] = item
            self._changed.notify_all()

    def take(self) -> tuple[int, Item]:
        """Wait for the next number's item. Raises EndOfChannel, ChannelClosed (by another receiver), ChannelBroken."""
        with self._changed:
            while not (self._closed or self._broken or self._next_taken in self._made or self._at_end()):
                self._changed.wait()
            self._check_open()
            if self._at_end():
                raise EndOfChannel
            number = self._next_taken
            self._next_taken += 1
            self._changed.notify_all()  # another receiver may wait for the number behind
            return number, self._made.pop(number)

    def release(self, number: int) -> None:
        """Give back the credit of an item that was taken."""
        with self._changed:
            credit = self._credits.pop(number)
            if self._ring is not None and credit.begin is not None:
                self._ring.give_back(credit.begin)
            self._changed.notify_all()

    def finish(self, n_items: int) -> None:
        """Nothing follows item `n_items - 1`; every sender may say so."""
        with self._changed:
            self._n_items = n_items
            self._changed.notify_all()

    def close(self) -> None:
        """A receiver wants no more, for all: senders and other receivers get ChannelClosed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def break_off(self) -> None:
        """Another part failed: everybody who waits, or comes, gets ChannelBroken."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    @property
    def n_items(self) -> int | None:
        """How many items there are in all, once a sender has said so."""
        with self._changed:
            return self._n_items

    def statistics(self) -> Statistics:
        """What is under way now."""
        with self._changed:
            return Statistics(len(self._credits), self._capacity, self._n_bytes())

    def _at_end(self) -> bool:
        return self._next_taken == self._n_items

    def _has_room(self, number: int, n_bytes: int) -> bool:
        if self._closed or self._broken:
            return True  # no room, but nothing to wait for
        if number != self._next_credit or len(self._credits) >= self._capacity:
            return False
        if not self._credits or self._capacity_bytes is None or self._ring is None:
            return True
        fits = self._n_bytes() + n_bytes <= self._capacity_bytes
        return fits and (n_bytes == 0 or self._ring.place(n_bytes) is not None)

    def _range(self, n_bytes: int) -> int | None:
        """There is room, if it is not larger than all."""
        if self._ring is None or n_bytes == 0 or self._ring.place(n_bytes) is None:
            return None
        return self._ring.take(n_bytes)

    def _n_bytes(self) -> int:
        return sum(credit.n_bytes for credit in self._credits.values())

    def _check_open(self) -> None:
        if self._broken:
            raise ChannelBroken
        if self._closed:
            raise ChannelClosed
