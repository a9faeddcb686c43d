"""Overrides to configurations: Hydra as a composer, and nothing more.

In: what stands behind a verb (`interleave=shuffle -m seed=0,1`). Out: the jobs it means, each a `Config` that has
passed the door; a sweep's last job is checked before its first one runs. Hydra runs no job here, so that it writes no
directory, configures no logging and prints no second error line; its flags (`--cfg`, `--info`, completion) are its own.
Of Hydra 1.3 this uses the loader beneath `hydra.main`, which `hydra.main` would use with the same arguments.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dflash_exp.analysis import Analysis
from dflash_exp.config import Config, identity
from dflash_exp.data.preparation import Preparation
from dflash_exp.data.regeneration import Regeneration
from dflash_exp.door import checked, checked_analysis, checked_launcher, checked_preparation, checked_regeneration, load
from dflash_exp.hydra_errors import one_line_errors
from dflash_exp.launch.launchers import InTurn, Launcher
from dflash_exp.options import CONFIG_NAME, conf_directory, own_directory
from dflash_exp.plan.seeds import named_rng
from dflash_exp.suggest import ConfigError, one_line, parsed
from dflash_exp.sweep_directory import names

IN_TURN = InTurn(stop_at_failure=False)
LENGTHS = ("epochs", "steps", "tokens")
OF_NO_RUN = ("hydra", "analysis", "prepare", "regenerate")
"""Top-level keys that are not a run's."""


@dataclass(frozen=True)
class Job:
    """One run that the user asked for."""

    config: Config
    overrides: list[str]
    """What the user typed for it; in a sweep, its share of that."""
    in_sweep: bool
    analysis: Analysis | None = None
    """What its sweep will be judged by."""
    launcher: Launcher = IN_TURN
    """Where it is to run."""
    index: int = 0
    """Its place among its sweep's combinations, as Hydra has them."""
    preparation: Preparation | None = None
    """What `dflash-exp prepare` is to make; no part of the run."""
    regeneration: Regeneration | None = None
    """What `dflash-exp regenerate` is to make; no part of the run."""

    @property
    def speed_from(self) -> Config | None:
        """The configuration of the run that `plan.speed_from` names, None without one; raises ConfigError."""
        run_dir = self.config.plan.speed_from
        return None if run_dir is None else load(Path(run_dir) / "config.yaml")


def compose(overrides: list[str]) -> Config:
    """The configuration that these overrides mean, from a notebook or a test; raises ConfigError."""
    return compose_jobs(overrides)[0].config


def compose_jobs(arguments: list[str]) -> list[Job]:
    """The jobs that a verb's arguments mean: one, or a sweep's under `-m`; none where a flag such as `--cfg` answered.

    Raises ConfigError.
    """
    args = parsed(get_args_parser(), arguments, "overrides are written key=value, without dashes")
    if args.config_name or args.config_path or args.experimental_rerun:
        raise ConfigError("--config-name, --config-path and --experimental-rerun have no use here; see --config-dir")
    hydra = _hydra(args.config_dir)
    with one_line_errors(hydra.config_loader, args.overrides):
        if _answered(hydra, args):
            return []
        composed = _composed(hydra.config_loader, args.overrides, args.multirun)
        if composed.hydra.mode == RunMode.MULTIRUN:
            return _sweep(hydra.config_loader, composed)
        if any(override.startswith("hydra.run.dir=") for override in composed.hydra.overrides.hydra):
            raise ConfigError("hydra.run.dir has no effect here; a run's directory is run_dir=...")
        return [_job(composed)]


def _hydra(config_dir: str | None) -> Hydra:
    version.setbase("1.3")
    search_path = create_config_search_path(str(conf_directory()))
    last = SearchPathQuery(provider="schema")
    search_path.prepend("sweeps", f"file://{conf_directory().parent}", last)
    if own_directory().is_dir():
        search_path.prepend("own", f"file://{own_directory()}", last)
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError(f"--config-dir must be a directory, got {config_dir}; give one that holds your groups")
        search_path.prepend("command-line", f"file://{Path(config_dir).absolute()}", last)
    return Hydra(task_name="dflash-exp", config_loader=ConfigLoaderImpl(config_search_path=search_path))


def _answered(hydra: Hydra, args: argparse.Namespace) -> bool:
    """Whether a flag of Hydra's own was given, which has then printed its answer."""
    if args.cfg:
        hydra.show_cfg(CONFIG_NAME, args.overrides, args.cfg, args.package, args.resolve)
    elif args.info is not None:
        hydra.show_info(args.info, config_name=CONFIG_NAME, overrides=args.overrides)
    elif args.hydra_help:
        hydra.hydra_help(CONFIG_NAME, args_parser=get_args_parser(), args=args)
    elif args.shell_completion:
        _complete(hydra, args.overrides)
    else:
        return False
    return True


def _complete(hydra: Hydra, arguments: list[str]) -> None:
    try:
        hydra.shell_completion(CONFIG_NAME, arguments)
    except ValueError as error:
        raise ConfigError(f"{one_line(str(error))}; say -sc install=bash") from error


def _composed(loader: ConfigLoader, overrides: list[str], multirun: bool) -> DictConfig:
    """The configuration in the mode it asks for: a sweep file asks for MULTIRUN, and `seed=0,1` is fine with it."""
    if not multirun:
        try:
            composed = _loaded(loader, overrides, RunMode.RUN)
            if composed.hydra.mode != RunMode.MULTIRUN:
                return composed
        except ConfigCompositionException as error:
            ambiguous = str(error).startswith("Ambiguous value")
            if not ambiguous or _loaded(loader, overrides, RunMode.MULTIRUN).hydra.mode != RunMode.MULTIRUN:
                raise
    composed = _loaded(loader, overrides, RunMode.MULTIRUN)
    composed.hydra.mode = RunMode.MULTIRUN
    return composed


def _loaded(loader: ConfigLoader, overrides: list[str], mode: RunMode) -> DictConfig:
    return loader.load_configuration(CONFIG_NAME, overrides, mode)


def _job(composed: DictConfig) -> Job:
    """Of no sweep."""
    typed = [str(override) for override in OmegaConf.to_container(composed.hydra.overrides.task, resolve=False) or []]
    config = checked(_with_the_length_typed(_of_a_run(composed), typed))
    launcher, preparation, regeneration = _beside_runs(composed)
    return Job(config, typed, in_sweep=False, launcher=launcher, preparation=preparation, regeneration=regeneration)


def _of_a_run(composed: DictConfig) -> DictConfig:
    """A copy of what is a run's."""
    return OmegaConf.masked_copy(composed, [str(key) for key in composed if key not in OF_NO_RUN])


def _beside_runs(composed: DictConfig) -> tuple[Launcher, Preparation, Regeneration]:
    """What is no run's, and the same for all runs of a sweep."""
    launcher, preparation = (
        checked_launcher(_plain(composed.hydra.launcher)),
        checked_preparation(_plain(composed.prepare)),
    )
    return launcher, preparation, checked_regeneration(_plain(composed.regenerate))


def _with_the_length_typed(settled: DictConfig, typed: list[str]) -> DictConfig:
    """One of epochs, steps and tokens on the command line replaces the one that an experiment's file gives."""
    given = [key for key in LENGTHS if any(override.partition("=")[0] == key for override in typed)]
    if len(given) != 1:
        return settled
    replaced = {key: None for key in LENGTHS if key not in given}
    merged = OmegaConf.merge(settled, replaced)
    assert isinstance(merged, DictConfig)
    return merged


def _sweep(loader: ConfigLoader, master: DictConfig) -> list[Job]:
    """Every combination that Hydra's basic sweeper makes, each with a directory of its own in the sweep's; numbered as
    Hydra has them, in the order in which they run."""
    block = master.get("analysis")
    analysis = None if block is None else checked_analysis(_plain(block))
    params = [f"{key}={value}" for key, value in (master.hydra.sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    overrides = parser.parse_overrides([*params, *master.hydra.overrides.task])
    (combinations,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    launcher, preparation, regeneration = _beside_runs(master)
    configs = [
        _config_of_sweep(composed, combinations, number)
        for number, composed in enumerate(_each_composed(loader, master, combinations))
    ]
    jobs = [
        Job(config, typed, True, analysis, launcher, index, preparation, regeneration)
        for index, (config, typed) in enumerate(zip(configs, combinations, strict=True))
    ]
    sweep_dir = Path(master.hydra.sweep.dir)
    found = names(sweep_dir, [(identity(job.config), job.overrides) for job in jobs])
    return _run_order([_placed(job, sweep_dir / name) for job, name in zip(jobs, found, strict=True)])


def _run_order(jobs: list[Job]) -> list[Job]:
    """Seed by seed, a seed's settings shuffled by that seed alone: a part of the sweep is balanced, no arm is always
    the first, and more seeds leave the order of the others as it is."""
    by_seed: dict[int, list[Job]] = {}
    for job in jobs:
        by_seed.setdefault(job.config.seed, []).append(job)
    return [own[i] for seed, own in by_seed.items() for i in named_rng("settings", seed, 0).permutation(len(own))]


def _each_composed(loader: ConfigLoader, master: DictConfig, combinations: list[list[str]]) -> Iterator[DictConfig]:
    """What Hydra composes for each combination, without what is Hydra's own. All that choose the same options share one
    composition (a tenth of a second), on which their values are then set."""
    parser, chosen = OverridesParser.create(config_loader=loader), dict[tuple[str, ...], DictConfig]()
    for combination in combinations:
        overrides = parser.parse_overrides(combination)
        values = [override for override in overrides if not loader.get_group_options(override.key_or_group)]
        options = tuple(str(override.input_line) for override in overrides if override not in values)
        if options not in chosen:
            chosen[options] = loader.load_sweep_config(master, list(options))
        composed = OmegaConf.masked_copy(chosen[options], [str(key) for key in chosen[options] if key != "hydra"])
        OmegaConf.set_struct(composed, True)  # which a copy is not: a key that is not there is an error
        ConfigLoaderImpl._apply_overrides_to_config(values, composed)
        yield composed


def _config_of_sweep(composed: DictConfig, combinations: list[list[str]], number: int) -> Config:
    """Raises ConfigError, which says which job it is."""
    try:
        return checked(_with_the_length_typed(_of_a_run(composed), combinations[number]))
    except ConfigError as error:
        which = f"job {number + 1} of {len(combinations)}: {told_apart(combinations)[number]}"
        raise ConfigError(f"{error} ({which})") from error


def told_apart(combinations: Sequence[Sequence[str]]) -> list[str]:
    """Of each the overrides that not all of them have, all of a single one, in a line."""
    shared = set.intersection(*(set(overrides) for overrides in combinations)) if len(combinations) > 1 else set()
    return [" ".join(typed for typed in overrides if typed not in shared) for overrides in combinations]


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True)


def _placed(job: Job, run_dir: Path) -> Job:
    if job.config.run_dir is not None:
        raise ConfigError(
            f"run_dir must stay null in a sweep, whose runs have directories of their own, got {job.config.run_dir}; "
            f"say hydra.sweep.dir={job.config.run_dir}"
        )
    telemetry = job.config.telemetry
    grouped = replace(telemetry, wandb=replace(telemetry.wandb, group=telemetry.wandb.group or run_dir.parent.name))
    return replace(job, config=replace(job.config, run_dir=str(run_dir), telemetry=grouped))
