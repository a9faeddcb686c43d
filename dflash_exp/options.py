"""Where the configuration's files are, and which options its groups have: a look at folders, without Hydra.

`conf/` and `sweeps/` stand at the top of a clone, and inside the package in an installed wheel.
"""

import os
from pathlib import Path

CONFIG_NAME = "config"
"""The root configuration, without its suffix."""


def conf_directory() -> Path:
    """The folder of config.yaml and the groups; `sweeps` is its neighbour in both layouts."""
    package = Path(__file__).resolve().parent
    return package / "conf" if (package / "conf").is_dir() else package.parent / "conf"


def own_directory() -> Path:
    """The folder of a user's or a site's own options, which need not be there; see conf/hydra/launcher/slurm.yaml."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "dflash-exp"


def group_options() -> dict[str, list[str]]:
    """The options of every group, `sweeps` too, both in alphabetical order."""
    folders = {folder.name: folder for folder in conf_directory().iterdir() if folder.is_dir()}
    folders["hydra/launcher"] = folders.pop("hydra") / "launcher"
    folders["sweeps"] = conf_directory().parent / "sweeps"
    return {group: sorted(file.stem for file in folders[group].glob("*.yaml")) for group in sorted(folders)}
