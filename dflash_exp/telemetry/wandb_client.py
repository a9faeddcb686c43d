"""How a run comes to be in W&B: online, or offline and why; its axis, its files.

In: options, labels, the run directory. Out: the client's run. Nothing here asks for a key or reads one: the client is
asked whether it finds one. Everything may raise; `background.py` is where that ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dflash_exp.telemetry.background import described
from dflash_exp.telemetry.mirror import TAG_CHARACTERS, RunLabels, Wandb, WandbMode
from dflash_exp.telemetry.wandb_summary import EXTREMES, summary_there

if TYPE_CHECKING:
    import wandb

STEP = "trainer/step"
OWN_MODES = {"disabled": WandbMode.off, "offline": WandbMode.offline, "dryrun": WandbMode.offline}
"""What the client's own WANDB_MODE means here; anything else is auto."""


@dataclass(frozen=True)
class Limits:
    """How long the client may take, seconds."""

    init_s: float
    """To be let in by the server; then the run is an offline one."""
    finish_s: float
    """To send what is left at the end; an upload has its own time on top, by its size."""


def chosen_mode(wanted: WandbMode, environment: Mapping[str, str]) -> WandbMode:
    """The mode asked for; under auto, what WANDB_MODE asks for."""
    return OWN_MODES.get(environment.get("WANDB_MODE", ""), wanted) if wanted is WandbMode.auto else wanted


@dataclass(frozen=True)
class WandbClient:
    """The client as this run uses it. Its process is one for all runs of ours, so the calls come from one thread."""

    config: Wandb
    mode: WandbMode
    labels: RunLabels
    run_dir: Path
    limits: Limits

    def set_up(self) -> None:
        """Import the client, silence it, start its process."""
        import wandb

        wandb.setup(wandb.Settings(silent=True, console="off", mode=self._asked_mode()))

    def start(self) -> tuple[wandb.Run, str]:
        """The run, and where it can be seen: online if the server lets it in within the limit, else offline."""
        import wandb

        why_offline = self._why_offline()
        if why_offline is None:
            try:
                run = self._start("online")
                return run, str(run.url)
            except (wandb.Error, TimeoutError) as error:
                why_offline = described(error)
                wandb.teardown()  # the client's process holds the id of a run that failed to start as taken
        kept = self.run_dir / "wandb" / "offline-run-*"
        return self._start("offline"), f"offline ({why_offline}); `wandb sync {kept}` sends it later"

    def summary(self) -> dict[str, Any]:
        """Of the whole run, by its files."""
        return summary_there(self.run_dir)

    def _asked_mode(self) -> Literal["online", "offline"]:
        return "offline" if self.mode is WandbMode.offline else "online"

    def _why_offline(self) -> str | None:
        import wandb

        if self.mode is WandbMode.offline:
            return "as asked"
        try:
            found = wandb.login(prompt=False, verify=False)
        except wandb.Error as error:  # a key that cannot be one
            return described(error)
        return None if found else "no key; `wandb login` stores one"

    def _start(self, mode: Literal["online", "offline"]) -> wandb.Run:
        import wandb

        run = wandb.init(
            entity=self.config.entity,
            project=self.config.project,
            dir=self.run_dir,
            id=self.labels.identity,
            name=self.labels.name,
            notes=self.config.notes,
            tags=[tag[:TAG_CHARACTERS] for tag in [*self.labels.tags, *self.config.tags] if tag],
            config=dict(self.labels.config),
            group=self.config.group or self.labels.group,
            job_type=self.config.job_type or self.labels.job_type,
            mode=mode,
            reinit="create_new",  # a notebook's own run goes on
            resume="allow",
            settings=self._settings(),
        )
        run.define_metric("*", step_metric=STEP)
        for name, extreme in EXTREMES.items():
            run.define_metric(name, step_metric=STEP, summary=f"{extreme},last")
        return run

    def _settings(self) -> wandb.Settings:
        import wandb

        return wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,  # environment.json has it; asking git can take seconds
            init_timeout=self.limits.init_s,
            finish_timeout=self.limits.finish_s,
            finish_timeout_raises=True,
        )


def upload(run: wandb.Run, kind: str, files: Sequence[Path], aliases: list[str], limit_s: float) -> None:
    """Give the run files as the artifact `<kind>-<run id>`; they must stay as they are, since nothing is copied.

    Online it waits until they are there; raises what the client raises where that takes longer than the limit.
    """
    import wandb

    artifact = wandb.Artifact(f"{kind}-{run.id}", type=kind)
    for path in files:
        artifact.add_file(str(path), policy="immutable", skip_cache=True)
    logged = run.log_artifact(artifact, aliases=aliases)
    if not run.offline:
        logged.wait(round(limit_s))


def table_of(what: str, rows: Sequence[Mapping[str, float | int | bool | str | None]]) -> wandb.Table:
    """Rows that all have the first one's keys, numbered from 0; `what`: a row is of."""
    import wandb

    return wandb.Table([what, *rows[0]], [[number, *row.values()] for number, row in enumerate(rows)])
