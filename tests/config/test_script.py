"""The script as a process: help without heavy imports, the same from any directory, in a clone and in a wheel."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dflash_exp.options import group_options

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str, where: Path, package_root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter in a directory, with the package as it lies under `package_root`."""
    environment = {**os.environ, "PYTHONPATH": str(package_root)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=where, env=environment, capture_output=True, text=True, timeout=120
    )


def script(*arguments: str, where: Path, package_root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the script as its entry point would."""
    return python("-m", "dflash_exp.cli", *arguments, where=where, package_root=package_root)


def test_help_whose_reader_has_gone_says_nothing(tmp_path: Path) -> None:
    command = f"{sys.executable} -m dflash_exp.cli --help | true; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_script_has_help(tmp_path: Path) -> None:
    assert "usage: dflash-exp VERB" in script("--help", where=tmp_path).stdout


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["evaluate", "--help"], ["trian"]])
def test_help_and_a_mistyped_verb_import_neither_torch_nor_hydra(tmp_path: Path, arguments: list[str]) -> None:
    code = f"import sys; from dflash_exp.cli import main; main({arguments}); print(sorted(sys.modules))"
    modules = python("-c", code, where=tmp_path).stdout.splitlines()[-1]
    assert "'dflash_exp.cli'" in modules
    assert not any(f"'{heavy}'" in modules for heavy in ("torch", "hydra", "omegaconf", "numpy"))


def test_a_mistyped_key_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = "import sys; from dflash_exp.cli import main; main(['train', 'sed=1']); print('torch' in sys.modules)"
    assert python("-c", code, where=tmp_path).stdout == "False\n"


def test_a_configuration_error_is_one_line_in_a_process_too(tmp_path: Path) -> None:
    refused = script("train", "interleave=strid_jitter", where=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "dflash-exp: interleave has no option `strid_jitter`; did you mean `stride_jitter`? "
        f"(options: {', '.join(group_options()['interleave'])})\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_installed_wheel_carries_conf_and_sweeps(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    clone = tmp_path / "clone"
    for name in ("conf", "sweeps", "dflash_exp"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", clone)
    for name in ("README.md", "LICENSE"):
        (clone / name).write_text("present")
    built = python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), where=clone)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for layout in (clone, site):
        shown = script("train", "--cfg", "job", "sweeps=interleaving", where=tmp_path, package_root=layout)
        assert "epochs: 1" in shown.stdout, shown.stderr
    for sweep in ("interleaving.yaml", "wandb/learning_rate.yaml"):
        assert (site / "dflash_exp" / "sweeps" / sweep).is_file()
    entry_points = next(site.glob("*.dist-info")) / "entry_points.txt"
    assert "dflash-exp = dflash_exp.cli:main" in entry_points.read_text()
