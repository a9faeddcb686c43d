"""A compilation is announced once, and a kernel that is there already is not."""

import os
import subprocess
import sys
from pathlib import Path

from numba import njit

from dflash_exp.plan import kernels
from dflash_exp.plan.compiling import LINE, announced

assert kernels, "a module of kernels listens"
COUNTS = "plan.counts=[5,3]"


def test_the_first_compilation_is_announced_once_and_before_it_is_done() -> None:
    doubled = njit(lambda number: 2 * number)
    said = []
    with announced(lambda line: said.append((line, len(doubled.signatures)))):
        assert (doubled(2), doubled(2.5)) == (4, 5.0)
    assert said == [(LINE, 0)]


def test_a_kernel_that_is_compiled_already_is_not_announced() -> None:
    doubled = njit(lambda number: 2 * number)
    doubled(2)
    said: list[str] = []
    with announced(said.append):
        doubled(3)
    assert said == []


def test_nothing_is_announced_after_the_end() -> None:
    said: list[str] = []
    with announced(said.append):
        pass
    njit(lambda number: 3 * number)(2)
    assert said == []


def typed(tmp_path: Path, *arguments: str) -> str:
    """What a command says on stderr, with the kernels' cache in a folder of its own."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "dflash_exp.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment).stderr


def test_plan_says_once_that_it_compiles_where_the_cache_is_cold_and_nothing_where_it_is_warm(tmp_path: Path) -> None:
    asked = ["plan", "interleave=tijdeman", COUNTS, f"plan.out={tmp_path / 'out'}"]
    assert typed(tmp_path, *asked).count(LINE) == 1
    assert LINE not in typed(tmp_path, *asked)


def test_train_says_it_too(tmp_path: Path) -> None:
    no_tap = "drafter.taps=[99]"  # refused behind the plan, so that nothing is trained
    said = typed(tmp_path, "train", "interleave=tijdeman", f"run_dir={tmp_path / 'run'}", no_tap)
    assert said.splitlines()[0] == f"dflash-exp: {LINE}" and "drafter.taps must be" in said


def test_a_plan_without_kernels_imports_no_compiler(tmp_path: Path) -> None:
    code = "import sys; from dflash_exp.cli import main; main(sys.argv[1:]); print('numba' in sys.modules)"
    command = [sys.executable, "-c", code, "plan", COUNTS, "interleave=shuffle", f"plan.out={tmp_path / 'out'}"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[-1] == "False"
