"""A bounded channel: order, bounds, and its three ways to end."""

import random
import sys
import threading
from collections.abc import Iterator

import pytest

from dflash_exp.pipeline.channel import Channel, ChannelBroken, ChannelClosed, EndOfChannel
from tests.lengths import full_or

SOON_S = 10.0


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads change every few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_thread(work: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_items_leave_in_the_order_of_their_numbers_whoever_was_first() -> None:
    channel: Channel[str] = Channel(3)
    for number in range(3):
        channel.reserve(number, 1)
    for number in (2, 0, 1):
        channel.put(number, f"item {number}")
    assert [channel.take() for _ in range(3)] == [(0, "item 0"), (1, "item 1"), (2, "item 2")]


def test_credit_bounds_items_and_bytes_until_it_is_given_back() -> None:
    channel: Channel[None] = Channel(2, capacity_bytes=10)
    channel.reserve(0, 6)
    late = in_thread(channel.reserve, 1, 5)
    late.join(0.05)
    assert late.is_alive()
    channel.put(0, None)
    channel.take()
    late.join(0.05)
    assert late.is_alive()  # taken is not done with: the item still fills memory
    channel.release(0)
    late.join(SOON_S)
    assert not late.is_alive()
    channel.reserve(2, 5)
    assert channel.statistics().items == 2 and channel.statistics().bytes == 10
    third = in_thread(channel.reserve, 3, 0)
    third.join(0.05)
    assert third.is_alive()
    channel.put(1, None)
    channel.take()
    channel.release(1)
    third.join(SOON_S)
    assert not third.is_alive()


def test_one_item_passes_whatever_its_size() -> None:
    channel: Channel[None] = Channel(1, capacity_bytes=10)
    channel.reserve(0, 11)
    assert channel.statistics().bytes == 11


def test_credit_goes_out_in_the_order_of_the_numbers() -> None:
    channel: Channel[None] = Channel(5)
    second = in_thread(channel.reserve, 1, 1)
    second.join(0.05)
    assert second.is_alive()
    channel.reserve(0, 1)
    second.join(SOON_S)
    assert not second.is_alive()


def test_a_finished_sender_a_closed_end_and_a_failure_are_three_different_things() -> None:
    finished: Channel[str] = Channel(2)
    finished.reserve(0, 1)
    finished.put(0, "last")
    finished.finish(1)
    assert finished.take() == (0, "last")
    with pytest.raises(EndOfChannel):
        finished.take()
    closed: Channel[str] = Channel(2)
    closed.close()
    with pytest.raises(ChannelClosed):
        closed.reserve(0, 1)
    with pytest.raises(ChannelClosed):  # another receiver did
        closed.take()
    broken: Channel[str] = Channel(2)
    broken.break_off()
    with pytest.raises(ChannelBroken):
        broken.reserve(0, 1)
    with pytest.raises(ChannelBroken):
        broken.take()


@pytest.mark.parametrize(("end", "error"), [("close", ChannelClosed), ("break_off", ChannelBroken)])
def test_who_waits_for_room_hears_of_the_end(end: str, error: type[Exception]) -> None:
    channel: Channel[None] = Channel(1)
    channel.reserve(0, 1)
    heard: list[type[Exception]] = []

    def wait() -> None:
        try:
            channel.reserve(1, 1)
        except (ChannelClosed, ChannelBroken) as ended:
            heard.append(type(ended))

    waiting = in_thread(wait)
    waiting.join(0.05)
    {"close": channel.close, "break_off": channel.break_off}[end]()
    waiting.join(SOON_S)
    assert heard == [error]


def test_a_channel_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="must hold >= 1 item"):
        Channel(0)


def pass_through(seed: int) -> list[int]:
    """Items through two channels and some workers, with random capacities and pauses; what came out."""
    rng = random.Random(seed)
    n_items, n_workers = rng.randrange(0, 12), rng.randrange(1, 5)
    first: Channel[int] = Channel(rng.randrange(1, 4))
    second: Channel[int] = Channel(rng.randrange(1, 6), rng.randrange(1, 8))
    sizes = [rng.randrange(0, 10) for _ in range(n_items)]
    pauses = [rng.random() < 0.2 for _ in range(4 * n_items + 8)]
    pause = threading.Event()

    def rest(i: int) -> None:
        if pauses[i % len(pauses)]:
            pause.wait(1e-5)

    def send() -> None:
        for number in range(n_items):
            first.reserve(number, 0)
            first.put(number, number)
        first.finish(n_items)

    def work() -> None:
        try:
            while True:
                number, item = first.take()
                first.release(number)
                rest(number)
                second.reserve(number, sizes[number])
                rest(number + n_items)
                second.put(number, item * 10)
        except EndOfChannel:
            second.finish(n_items)

    threads = [in_thread(send), *(in_thread(work) for _ in range(n_workers))]
    out: list[int] = []
    collected = threading.Event()

    def collect() -> None:
        try:
            while True:
                number, item = second.take()
                out.append(item)
                second.release(number)
        except EndOfChannel:
            collected.set()

    in_thread(collect)
    assert collected.wait(SOON_S), f"deadlock with seed {seed}"
    for thread in threads:
        thread.join(SOON_S)
        assert not thread.is_alive(), f"a worker hangs with seed {seed}"
    return [item // 10 for item in out] if out == [10 * i for i in range(n_items)] else [-1]


def test_interleavings_of_all_kinds_end_and_deliver_everything_in_order(hurried: None) -> None:
    for seed in range(full_or(2000, 300)):
        got = pass_through(seed)
        assert got == list(range(len(got))), f"seed {seed}"
