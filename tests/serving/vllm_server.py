"""vLLM's own server on loopback with a target and a drafter, and the drafters that its CPU build is held to."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file

from dflash_exp.export import WEIGHTS
from dflash_exp.published import read_shape
from tests import loopback_server

START_S = 600
QUIET = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}


def with_first_key_norm(drafter: Path, folder: Path) -> Path:
    """A copy whose layers all have the first one's weight of k_norm."""
    shutil.copytree(drafter, folder)
    state = load_file(drafter / WEIGHTS)
    for i in range(read_shape(drafter).n_layers):
        state[f"layers.{i}.self_attn.k_norm.weight"] = state["layers.0.self_attn.k_norm.weight"].clone()
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


@contextmanager
def serving(python: Path, target: Path, drafter: Path, log: Path) -> Iterator[str]:
    """The address of a server that has loaded both, in float32: in bf16 logits are often equal, and there greedy texts
    of two implementations part."""
    drafts = read_shape(drafter).block_size - 1
    speculative = f'{{"method": "dflash", "model": "{drafter}", "num_speculative_tokens": {drafts}}}'
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def command(port: str) -> list[str | Path]:
        return [
            python, "-m", "vllm.entrypoints.openai.api_server", "--model", target, "--dtype", "float32",
            "--enforce-eager", "--max-model-len", "4096", "--host", "127.0.0.1", "--port", port,
            "--speculative-config", speculative,
        ]  # fmt: skip

    with loopback_server.serving(command, log, START_S, outside | QUIET) as address:
        yield address
