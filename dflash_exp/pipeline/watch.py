"""A stage's clock: what it does now, since when, and how long it was busy and waited since it was last asked.

The loop that owns it writes, the supervisor reads `doing`, one tuple that is replaced whole.
"""

import time
from enum import Enum

from dflash_exp.messages import StageTime


class Doing(Enum):
    """What a stage does."""

    busy = "busy"
    waiting = "waiting"
    meeting = "meeting"
    """Other ranks, who have a time limit of their own."""
    over = "over"


class Watch:
    """Belongs to one loop."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.doing: tuple[Doing, float] = (Doing.waiting, time.perf_counter())
        self._spent_s = dict.fromkeys(Doing, 0.0)

    def turn(self, now_doing: Doing) -> None:
        """From here on the stage does this."""
        before, since_s = self.doing
        now_s = time.perf_counter()
        self._spent_s[before] += now_s - since_s
        self.doing = (now_doing, now_s)

    def spent_s(self, doing: Doing) -> float:
        """Seconds that it did this, until it turned to something else, since the last lap."""
        return self._spent_s[doing]

    def lap(self) -> StageTime:
        """Seconds busy and waiting since the last lap."""
        self.turn(self.doing[0])
        spent = StageTime(self._spent_s[Doing.busy], self._spent_s[Doing.waiting])
        self._spent_s = dict.fromkeys(self._spent_s, 0.0)
        return spent
