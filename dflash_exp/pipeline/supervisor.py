"""Who watches the loops: starts them, and waits for the end of all, the first failure, or a stall.

In: loops and the channels that join them. Out: nothing, or the first failure with its own traceback. It runs in the
main thread, so signal handlers run even while a loop waits in foreign code; it polls nothing.
"""

import threading
import time
from collections.abc import Callable
from threading import Condition, Thread
from typing import Protocol

from dflash_exp.pipeline.channel import Channel, ChannelBroken
from dflash_exp.pipeline.watch import Doing, Watch

STOP_WITHIN_S = 5.0
"""How long the other loops have to end after one failed; a thread cannot be killed, so one that is late is left."""
SUSPENDED_S = 2.0
"""A wait that overruns by more was slept through by the whole process."""


class StageStalled(RuntimeError):
    """A stage has worked on one item, or all have waited, longer than `pipeline.stall_timeout_s`."""


class Loop(Protocol):
    """One thread of the line."""

    watch: Watch

    def run(self) -> None: ...


class Supervisor:
    """Of one run of the line."""

    def __init__(
        self, loops: list[Loop], channels: list[Channel], stall_timeout_s: float, on_stall: Callable[[str], None]
    ) -> None:
        self._loops = loops
        self._channels = channels
        self._stall_timeout_s = stall_timeout_s
        self._on_stall = on_stall
        self._changed = Condition()
        self._n_running = len(loops)
        self._not_before_s = 0.0
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Raises the first failure of a loop, or StageStalled; KeyboardInterrupt at once, loops or not."""
        # daemons: a loop that is stuck in a foreign call must not keep the process from ending
        threads = [Thread(target=self._guard, args=(loop,), name=loop.watch.stage, daemon=True) for loop in self._loops]
        for thread in threads:
            thread.start()
        try:
            self._wait()
        except BaseException as error:
            for channel in self._channels:
                channel.break_off()
            if isinstance(error, KeyboardInterrupt):
                raise
            until_s = time.monotonic() + STOP_WITHIN_S
            for thread in threads:
                thread.join(max(0.0, until_s - time.monotonic()))
            raise
        for thread in threads:
            thread.join()

    def _guard(self, loop: Loop) -> None:
        failure: BaseException | None = None
        try:
            loop.run()
        except ChannelBroken:
            pass
        except BaseException as error:  # the thread's edge: kept, and raised again by the supervisor
            failure = error
        loop.watch.turn(Doing.over)
        with self._changed:
            self._failure = self._failure or failure
            self._n_running -= 1
            self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            while self._n_running and self._failure is None:
                left_s = self._stall_timeout_s - self._silent_s()
                if left_s <= 0:
                    self._stalled()
                before_s = time.perf_counter()
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                now_s = time.perf_counter()
                if now_s - before_s > left_s + SUSPENDED_S:  # the whole process stood still (Ctrl-Z, scontrol suspend)
                    self._not_before_s = now_s
        if self._failure is not None:
            raise self._failure

    def _silent_s(self) -> float:
        """Seconds that the stage in question has been at its item: of the busy ones the longest; if all wait, since the
        last of them began to; none while other ranks are waited for."""
        now_s = time.perf_counter()
        doing = [
            (what, max(since_s, self._not_before_s)) for what, since_s in (loop.watch.doing for loop in self._loops)
        ]
        busy = [now_s - since_s for what, since_s in doing if what is Doing.busy]
        waiting = [now_s - since_s for what, since_s in doing if what is Doing.waiting]
        if any(what is Doing.meeting for what, _ in doing):
            waiting = []
        return max(busy) if busy else min(waiting, default=0.0)

    def _stalled(self) -> None:
        shown = ", ".join(f"{loop.watch.stage} {loop.watch.doing[0].value}" for loop in self._loops)
        self._on_stall(shown)
        raise StageStalled(
            f"no stage may be silent for pipeline.stall_timeout_s={self._stall_timeout_s:g} s, got: {shown}; "
            "see the stacks in logs/, or raise it"
        )
