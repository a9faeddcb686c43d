"""The benchmark's own arithmetic, on a size that takes no time; the peers are not installed where tests run."""

import json

import pytest
import torch

from dflash_exp.bench.made_up_step import Given, Size
from tests.benchmarks import step_against_peers
from tests.benchmarks.peers import Peer
from tests.benchmarks.step_against_peers import Measured, as_json, main, measure

TINY = Size("tiny", (40, 24), 3, 4, 4.0, 30)


def test_times_are_compared_round_by_round_with_the_fastest_peer_of_the_medians() -> None:
    times = {"ours": [1.0, 2.0, 4.0], "slow": [9.0, 9.0, 9.0], "fast": [2.0, 3.0, 8.0]}
    one = Measured(TINY, times, {"ours": 1, "slow": 2, "fast": 3}, {"slow": (0.0, 0.0), "fast": (0.0, 0.0)})
    assert (one.fastest, one.ratio) == ("fast", 2.0)
    assert as_json(one) == {
        "name": "tiny", "ours_ms": 2000.0, "peers_ms": {"slow": 9000.0, "fast": 3000.0},
        "ours_peak_bytes": 1, "peers_peak_bytes": {"slow": 2, "fast": 3},
    }  # fmt: skip


def test_a_peer_whose_loss_or_gradient_is_another_is_told_apart_by_how_much() -> None:
    def half(given: Given, folder: object) -> Peer:
        """Ours by half the loss, of a gradient of ones."""
        parameters = dict(given.drafter.named_parameters())

        def loss() -> torch.Tensor:
            return sum((p.sum() for p in parameters.values()), torch.zeros(()))

        return Peer(parameters, loss)

    one = measure(TINY, 1, {"half": half})
    loss_apart, gradient_apart = one.apart["half"]
    assert loss_apart > 1 and 0.5 < gradient_apart < 2
    assert set(one.times_s) == set(one.peak_bytes) == {"ours", "half"}
    assert one.peak_bytes["ours"] > 0


def test_without_peers_ours_is_measured_alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.delenv("PEERS_PYTHON", raising=False)
    monkeypatch.setattr(step_against_peers, "SIZES", (TINY, TINY, TINY))
    threads = torch.get_num_threads()
    assert main(["--json", str(tmp_path / "x.json"), "--rounds", "3", "--threads", str(threads)]) == 0
    found = json.loads((tmp_path / "x.json").read_text())["sizes"]
    assert [one["name"] for one in found] == ["tiny"] * 3
    assert all(one["peers_ms"] == {} and one["ours_ms"] > 0 for one in found)
