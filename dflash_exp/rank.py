"""A run in one process, or in one for each rank; and what runs there: `python -m dflash_exp.rank CONFIG OVERRIDES`.

In: a checked configuration, what the user typed, and perhaps a launcher's environment. Out: the run's exit code. The
first rank speaks for all; a traceback comes from the rank that it belongs to.
"""

import os
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from dflash_exp.config import Config
from dflash_exp.distributed import grow_segments, rank_devices
from dflash_exp.door import load, to_yaml
from dflash_exp.experiment import run
from dflash_exp.launch.children import FAILED, WRONG_INPUT, stop_with_the_launcher
from dflash_exp.launch.local import run_ranks
from dflash_exp.ranks import Alone, Group, place_of
from dflash_exp.stop import StopSignals, say_at_once
from dflash_exp.suggest import ConfigError

GRACE_S = 30.0
"""After one rank has failed: for the others to notice, to say so and to let their mirrors go."""


def start(config: Config, overrides: list[str], stop: StopSignals) -> int:
    """Train here, as the rank that a launcher made of this process, or in one process for each rank."""
    topology = config.topology
    if topology.n_ranks == 1 or place_of(os.environ) is not None:
        return run_as_rank(config, overrides, stop)
    if topology.nodes > 1:
        raise ConfigError(
            f"topology.nodes must be 1 where no launcher has started the ranks, got {topology.nodes}; "
            "use srun or torchrun"
        )
    try:
        rank_devices(topology, config.target.layer_split, 0)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    asked = lambda: stop.requested is not None  # noqa: E731
    with TemporaryDirectory() as folder:
        files = Path(folder) / "config.yaml", Path(folder) / "overrides.yaml"
        files[0].write_text(to_yaml(config), encoding="utf-8")
        files[1].write_text(yaml.safe_dump(overrides), encoding="utf-8")
        command = [sys.executable, "-m", "dflash_exp.rank", *map(str, files)]
        return run_ranks(command, topology.n_ranks, min(GRACE_S, topology.timeout_s), asked)


def run_as_rank(config: Config, overrides: list[str], stop: StopSignals) -> int:
    """Join the other ranks, if there are any, and train."""
    grow_segments(os.environ)
    rank, n_ranks = place_of(os.environ) or (0, 1)
    if n_ranks != config.topology.n_ranks:
        raise ConfigError(
            f"topology must have as many ranks as the launcher has started, got {config.topology.n_ranks} for "
            f"{n_ranks}; see topology.nodes and topology.ranks_per_node"
        )
    if n_ranks == 1:
        return run(config, overrides, stop, Alone())
    try:
        device = rank_devices(config.topology, config.target.layer_split, rank).drafter
    except ValueError as error:
        raise ConfigError(str(error)) from error
    ranks = Group(rank, n_ranks, device, config.topology.timeout_s)
    code = run(config, overrides, stop, ranks)
    ranks.close()  # a sweep's next run makes a group of its own
    return code


def main(config_file: Path, overrides_file: Path) -> int:
    """A rank that `start` has made: its exit code, and on stderr what went wrong."""
    rank = os.environ["RANK"]
    with StopSignals(lambda _: None) as stop:  # who started it says so
        stop_with_the_launcher()
        try:
            return run_as_rank(load(config_file), yaml.safe_load(overrides_file.read_text(encoding="utf-8")), stop)
        except ConfigError as error:
            if rank == "0":
                say_at_once(f"dflash-exp: {error}")
            return WRONG_INPUT
        except KeyboardInterrupt:
            return FAILED
        except BaseException:  # the process's edge
            say_at_once(f"rank {rank} failed:\n{traceback.format_exc()}")
            return FAILED


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(code)  # a loop that is stuck must not hold the process
