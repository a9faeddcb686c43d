"""A run in a process of its own, killed where it is told to: `python resume_script.py PLACE TIMES OVERRIDE...`."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from dflash_exp import between_steps, checkpoint, durable, session
from dflash_exp.compose import compose
from dflash_exp.experiment import run
from dflash_exp.stop import StopSignals


def followed(n_calls: int, plain: Callable[..., Any], number: int = signal.SIGKILL) -> Callable[..., Any]:
    """`plain`, whose n-th call is followed by that signal."""
    left = [n_calls]

    def called(*arguments: Any) -> Any:
        result = plain(*arguments)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)
        return result

    return called


def main(place: str, times: int, overrides: list[str]) -> int:
    torch.set_num_threads(1)
    plain_step = between_steps.step_metrics
    if place == "between writes":
        between_steps.step_metrics = followed(times, plain_step)
    elif place == "in a write":
        checkpoint._sha256 = followed(times, checkpoint._sha256)
    elif place == "before latest":
        checkpoint.write_whole = followed(times, lambda *_: None)
    elif place == "in a sync":
        durable._sync = followed(times, durable._sync)
    elif place == "while it loads":
        session.build = followed(times, session.build, signal.SIGUSR2)
    elif place.startswith("SIG"):
        between_steps.step_metrics = followed(times, plain_step, signal.Signals[place])
    with StopSignals() as stop:
        return run(compose(overrides), overrides, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
