"""Where the configuration's files are, and which options its groups have: a look at folders, without Hydra.

`conf/` and `sweeps/` stand at the top of a clone, and inside the package in an installed wheel.
"""

from pathlib import Path


def conf_directory() -> Path:
    """The folder of config.yaml and the groups; `sweeps` is its neighbour in both layouts."""
    package = Path(__file__).resolve().parent
    return package / "conf" if (package / "conf").is_dir() else package.parent / "conf"


def group_options() -> dict[str, list[str]]:
    """The options of every group, `sweeps` too, both in alphabetical order."""
    folders = [folder for folder in conf_directory().iterdir() if folder.is_dir()]
    folders.append(conf_directory().parent / "sweeps")
    return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in sorted(folders)}
