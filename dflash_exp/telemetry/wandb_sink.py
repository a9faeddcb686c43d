"""The mirror in W&B: records, alerts and folders in; one W&B run out, whatever was stopped and resumed in between.

The run's id is its identity and its axis `trainer/step`: offline the client numbers its own steps anew. After a kill,
the steps since the last checkpoint are there twice, with the same values. Under `wandb agent` the client puts the
agent's id, project and entity (WANDB_RUN_ID, ...) in the place of ours, and all else holds.

The client works on a thread of its own, asks nobody for a key and cannot fail the run. The run waits for its import
(.8 s) and, at the end, at most for `Limits`; a record costs about a millisecond of the thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.messages import StepRecord
from dflash_exp.telemetry.background import Background
from dflash_exp.telemetry.mirror import TAG_CHARACTERS, RunLabels, Wandb, WandbArtifacts, WandbMode, plotted
from dflash_exp.telemetry.wandb_client import STEP, Limits, WandbClient, chosen_mode, table_of, upload

if TYPE_CHECKING:
    import wandb

LIMITS = Limits(init_s=15.0, finish_s=10.0)
"""Together under the 30 s that Slurm leaves a job it told to stop."""
EXIT_CODES = {"finished": 0, "failed": 1, "stopped": 75}
"""By status. W&B shows a run as preempted that was marked as preempting and ends with another code than 0."""
UPLOAD_BYTES_PER_S = 4 * 2**20
"""A slower upload is given up."""


def open_wandb(
    config: Wandb, labels: RunLabels, run_dir: Path, say: Callable[[str], None], limits: Limits = LIMITS
) -> WandbSink | None:
    """A sink whose client is starting; None where W&B is off.

    `say` takes the one line on where the run can be seen, and a warning if there is one, from the sink's thread.
    """
    mode = chosen_mode(config.mode, os.environ)
    if mode is WandbMode.off:
        return None
    # The client's own error reports would hold the process for 12 s at its end where the server is slow.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    return WandbSink(WandbClient(config, mode, labels, run_dir, limits), say)


class WandbSink:
    """Every method but `close` returns at once; what is asked before the client has started is done when it has."""

    def __init__(self, client: WandbClient, say: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self._upload_s = 0.0
        self._background = Background("W&B", client.set_up, self._start, say)

    def write(self, record: StepRecord) -> None:
        """One point of every chart."""
        self._background.submit(lambda run: run.log({STEP: record.step, **plotted(record)}))

    def mark_preempting(self) -> None:
        """The run was told to stop, and will be resumed."""
        self._background.submit(lambda run: run.mark_preempting())

    def alert(self, title: str, text: str) -> None:
        """A message to whom it concerns, if the configuration allows them."""
        if self._client.config.alerts:
            self._background.submit(lambda run: run.alert(title[:TAG_CHARACTERS], text))

    def log_drafter(self, folder: Path) -> None:
        """Upload the files of an exported drafter, which must stay as they are."""
        if self._client.config.artifacts is not WandbArtifacts.none:
            self._upload("drafter", sorted(path for path in folder.iterdir() if path.is_file()), ["latest", "final"])

    @property
    def wants_all(self) -> bool:
        """Whether the plan's files are asked for, too."""
        return self._client.config.artifacts is WandbArtifacts.all

    def log_prompts(self, rows: Sequence[Mapping[str, float | int | bool]]) -> None:
        """The decoded prompts as a table, one row each; no row, no table."""
        if rows and self._client.config.artifacts is not WandbArtifacts.none:
            self._background.submit(lambda run: run.log({"evaluation/prompts": table_of("prompt", rows)}))

    def log_jumps(self, rows: Sequence[Mapping[str, float | int | str | None]]) -> None:
        """The jumps of the loss as a table, one row each; no row, no table."""
        if rows and self._client.config.artifacts is not WandbArtifacts.none:
            self._background.submit(lambda run: run.log({"dynamics/jumps": table_of("jump", rows)}))

    def log_plan(self, files: Sequence[Path]) -> None:
        """Upload the plan's figure and order; the files must stay as they are."""
        self._upload("plan", files, ["latest"])

    def close(self, status: str) -> None:
        """Send what is left, for at most the limits' time. Raises KeyError for a status that there is not."""
        exit_code, limits = EXIT_CODES[status], self._client.limits
        self._background.submit(lambda run: run.summary.update(self._client.summary()))
        self._background.submit(lambda run: self._finish(run, exit_code))
        self._background.close(limits.init_s + limits.finish_s + self._upload_s)

    def _start(self) -> wandb.Run:
        run, where = self._client.start()
        self._say(f"W&B: {where}")
        return run

    def _upload(self, kind: str, files: Sequence[Path], aliases: list[str]) -> None:
        upload_s = self._client.limits.finish_s + sum(path.stat().st_size for path in files) / UPLOAD_BYTES_PER_S
        self._upload_s += upload_s
        self._background.submit(lambda run: upload(run, kind, files, aliases, upload_s))

    def _finish(self, run: wandb.Run, exit_code: int) -> None:
        try:
            run.finish(exit_code)
        except TimeoutError:
            limit_s = self._client.limits.finish_s
            mend = f"`wandb sync {run.settings.sync_dir}` sends the rest"
            self._background.warn(f"has not taken everything within {limit_s:.0f} s, {mend}")
