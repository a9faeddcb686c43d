"""W&B asked for something by a user who waits for it: a client that found its key, or one line on why not.

In: nothing but what the client itself finds. Nothing here asks for a key, reads one or lets one out. This is where
whatever the client raises ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dflash_exp.telemetry.background import described

NO_KEY = "no key; `wandb login` stores one"


class WandbTrouble(RuntimeError):
    """W&B did not do what it was asked for. The message is why, in a few words."""


@contextmanager
def signed_in() -> Iterator[None]:
    """The client imported, silent, with a key. Raises WandbTrouble, also in the place of what is raised inside."""
    # The client's own error reports would hold the process for 12 s at its end where the server is slow.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        wandb.setup(wandb.Settings(silent=True, console="off", mode="online"))
        if not wandb.login(prompt=False, verify=False):
            raise WandbTrouble(NO_KEY)
        yield
    except WandbTrouble:
        raise
    except Exception as error:  # the edge: clients raise errors of a dozen libraries
        raise WandbTrouble(described(error)) from error
