"""What the target said once is kept: the same bits, bounded, whoever else writes, whatever happened to a file."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_exp.feature_cache import CacheCounts, CachedTargets, DiskStore, MemoryStore, Store, default_folder
from dflash_exp.forwarded import Forward
from dflash_exp.messages import BatchPlan, TargetFeatures, TokenBatch
from tests.world import World, make_world, result_of, results_only

CPU = torch.device("cpu")
MORE = ("epochs=2", "batches.frozen=true", "evaluate=false", "probe.every_steps=3")
"""Two epochs of the same batches."""


def batch_of(first_token: int = 1, width: int = 4, lengths: tuple[int, ...] = (4, 2)) -> TokenBatch:
    tokens_BT = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in enumerate(lengths):
        tokens_BT[row, :length] = torch.arange(first_token, first_token + length)
    none = torch.empty(0, dtype=torch.int64)
    plan = BatchPlan(0, 0, 0, 0, 0, np.arange(len(lengths)))
    return TokenBatch(plan, tokens_BT, tokens_BT > 0, torch.tensor(lengths), none, none)


class FakeTarget:
    """Features of 24 bytes a token in bf16; counts its calls."""

    device = CPU

    def __init__(self, forward: Forward = Forward.BATCH) -> None:
        self.forward = forward
        self.calls = 0

    def features(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        self.calls += 1
        real_P = torch.cat([row[:n] for row, n in zip(tokens_BT, lengths_B.tolist(), strict=True)])
        return torch.sin(real_P[:, None] + torch.arange(12.0)).to(torch.bfloat16)

    def __call__(self, batch: TokenBatch) -> TargetFeatures:
        return TargetFeatures(batch, self.features(batch.tokens_BT, batch.lengths_B))


def bits(features: TargetFeatures) -> Tensor:
    return features.features_PF.view(torch.int16)


@pytest.fixture(params=["memory", "disk"])
def store_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int, list[str]], Store]:
    if request.param == "memory":
        return lambda bound_bytes, said: MemoryStore(bound_bytes, said.append)
    return lambda bound_bytes, said: DiskStore(tmp_path / "cache", bound_bytes, said.append)


def test_a_batch_is_forwarded_once_and_comes_back_bit_for_bit(store_of: Callable[[int, list[str]], Store]) -> None:
    target, cached = FakeTarget(), CachedTargets(store_of(10**6, []), "")
    asked = cached.wrap(target)
    fresh, again = asked(batch_of()), asked(replace(batch_of(), plan=BatchPlan(7, 1, 2, 0, 0, np.arange(2))))
    assert target.calls == 1 and cached.counts() == CacheCounts(found=1, kept=1, not_kept=0)
    assert torch.equal(bits(fresh), bits(again)) and torch.equal(bits(fresh), bits(FakeTarget()(batch_of())))
    assert again.batch.plan.number == 7, "the batch is the one that was asked for"


def test_by_sequence_each_is_forwarded_once_whatever_its_company(store_of: Callable[[int, list[str]], Store]) -> None:
    target, cached = FakeTarget(Forward.SEQUENCE), CachedTargets(store_of(10**6, []), "")
    asked = cached.wrap(target)
    asked(batch_of(lengths=(4, 2)))
    found = asked(batch_of(width=9, lengths=(2, 3, 4)))  # the 2 and the 4 were there, in other company and less padding
    assert cached.counts() == CacheCounts(found=2, kept=3, not_kept=0) and target.calls == 3
    assert torch.equal(bits(found), bits(FakeTarget()(batch_of(width=9, lengths=(2, 3, 4)))))


def test_a_folder_is_looked_through_now_and_then_and_own_files_count_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    scandir = os.scandir
    monkeypatch.setattr("dflash_exp.feature_cache.os.scandir", lambda folder: looks.append(folder) or scandir(folder))
    store = DiskStore(tmp_path, 1000, print)
    n_looks, features_PF = len(looks), torch.zeros(50, dtype=torch.float32)
    assert [store.keep(f"{key:064x}", features_PF) for key in range(4)] == [True, True, True, False]
    assert len(looks) == n_looks + 1


def test_a_key_is_of_tokens_shape_lengths_threads_and_what_else_decides_a_bit() -> None:
    cached = CachedTargets(MemoryStore(1, print), "a target")
    default = torch.get_num_threads()
    other = CachedTargets(MemoryStore(1, print), "b")

    def key(batch: TokenBatch, cached: CachedTargets = cached) -> str:
        return cached.key(batch.tokens_BT, batch.lengths_B)

    keys = {key(batch) for batch in (batch_of(), batch_of(2), batch_of(width=5), batch_of(lengths=(4, 3)))}
    keys |= {key(batch_of(width=8, lengths=(4,))), key(batch_of(), other)}
    try:
        torch.set_num_threads(default + 1)
        keys.add(key(batch_of()))
    finally:
        torch.set_num_threads(default)
    assert len(keys) == 7 and key(batch_of()) in keys


def test_what_does_not_fit_is_forwarded_each_time_counted_and_said_once(
    store_of: Callable[[int, list[str]], Store],
) -> None:
    said: list[str] = []
    target, cached = FakeTarget(), CachedTargets(store_of(400, said), "")
    asked = cached.wrap(target)
    for first_token in (1, 2, 3, 1, 2, 3):  # 144 bytes each, and a file's header
        asked(batch_of(first_token))
    counts = cached.counts()
    assert counts.found == counts.kept and counts.found + counts.kept + counts.not_kept == 6
    assert counts.kept in (1, 2) and target.calls == 6 - counts.found
    assert len(said) == 1 and "is full" in said[0] and "forwarded each time" in said[0]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_said_and_made_anew(tmp_path: Path, damage: str) -> None:
    said: list[str] = []
    target, cached = FakeTarget(), CachedTargets(DiskStore(tmp_path, 10**6, said.append), "")
    asked = cached.wrap(target)
    fresh = bits(asked(batch_of()))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-1], "flipped": whole[:-1] + bytes([whole[-1] ^ 1]), "empty": b""}[damage])
    assert torch.equal(bits(asked(batch_of())), fresh) and target.calls == 2
    assert len(said) == 1 and str(path) in said[0] and "made anew" in said[0]
    assert path.read_bytes() == whole and torch.equal(bits(asked(batch_of())), fresh) and target.calls == 2


def test_writers_side_by_side_leave_whole_files_and_one_of_each(tmp_path: Path) -> None:
    said: list[str] = []
    batches = [batch_of(first) for first in range(1, 21)]
    results: list[list[Tensor]] = []

    def work() -> None:
        asked = CachedTargets(DiskStore(tmp_path, 10**6, said.append), "").wrap(FakeTarget())
        results.append([bits(asked(batch)) for batch in batches * 3])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [] and len(list(tmp_path.iterdir())) == 20
    for found in results:
        assert all(torch.equal(one, bits(FakeTarget()(batch))) for one, batch in zip(found, batches * 3, strict=True))


def test_a_folder_that_cannot_be_is_one_line_and_a_killed_writer_s_file_goes_after_an_hour(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"target\.cache_dir must be a folder that can be written.*name another"):
        DiskStore(tmp_path / "file", 1, print)
    names = (f".{'a' * 64}.safetensors-x.unfinished", f".{'b' * 64}.safetensors-x.unfinished", ".theirs.unfinished")
    for name in names:
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (time.time() - 4000, time.time() - 4000))
    os.utime(tmp_path / names[1])
    assert DiskStore(tmp_path, 1, print).n_bytes() == 4
    assert {path.name for path in tmp_path.iterdir()} == {"file", names[1], names[2]}, "and nothing of anybody else's"


def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash_exp.feature_cache.write_whole", full)
    said: list[str] = []
    cached = CachedTargets(DiskStore(tmp_path, 10**6, said.append), "")
    asked = cached.wrap(FakeTarget())
    assert len(asked(batch_of()).features_PF) == len(asked(batch_of()).features_PF) == 6
    assert cached.counts().not_kept == 2 and len(said) == 1 and "No space left" in said[0]


def test_the_user_s_cache_folder_is_where_their_system_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert default_folder() == Path("/elsewhere/dflash-exp/features")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_folder() == Path("/home/me/.cache/dflash-exp/features")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def uncached(world: World) -> Path:
    return world.train("uncached", *MORE)


def test_runs_with_a_cache_give_the_records_of_one_without_cold_and_warm_whatever_the_line(
    world: World, uncached: Path
) -> None:
    disk = ("target.cache=disk", f"target.cache_dir={world.root / 'features'}")
    found = {}
    for name, more in {
        "memory": ("target.cache=memory",),
        "cold": disk,
        "warm": disk,
        "warm_lockstep": (*disk, "pipeline=lockstep"),
        "warm_three": (*disk, "topology.target_workers=3"),
        "other_order": (*disk, "interleave=shuffle"),
        "small": ("target.cache=disk", f"target.cache_dir={world.root / 'bounded'}", "target.cache_bytes=60000"),
    }.items():
        run_dir = world.train(name, *MORE, *more)
        if name != "other_order":
            assert results_only(run_dir) == results_only(uncached), name
        (found[name],) = result_of(run_dir)["target_cache_by_rank"]
    n = found["memory"]["found"]
    assert n > 5 and found["memory"] == {"found": n, "kept": n, "not_kept": 0} == found["cold"]
    for name in ("warm", "warm_lockstep", "warm_three", "other_order"):
        assert found[name] == {"found": 2 * n, "kept": 0, "not_kept": 0}, "arms of a sweep share their batches"
    assert found["small"]["not_kept"] > 0 and found["small"]["found"] == found["small"]["kept"] > 0
    assert sum(path.stat().st_size for path in (world.root / "bounded").iterdir()) <= 60000


def test_by_sequence_other_epochs_seeds_and_budgets_find_what_one_kept_and_give_the_records_of_runs_without(
    world: World,
) -> None:
    alone = ("target.forward=sequence", "epochs=2", "evaluate=false", "probe.every_steps=3")
    disk = ("target.cache=disk", f"target.cache_dir={world.root / 'sequences'}")
    found = {}
    for name, more in {"seed_0": (), "seed_1": ("seeds.data=1",), "budget": ("batches.budget_tokens=96",)}.items():
        run_dir = world.train(f"kept_{name}", *alone, *disk, *more)
        (found[name],) = result_of(run_dir)["target_cache_by_rank"]
        if name != "budget":
            assert results_only(run_dir) == results_only(world.train(f"anew_{name}", *alone, *more)), name
    n = found["seed_0"]["kept"]
    assert n > 5 and found["seed_0"] == {"found": n, "kept": n, "not_kept": 0}, "the second epoch packs others together"
    assert found["seed_1"] == found["budget"] == {"found": 2 * n, "kept": 0, "not_kept": 0}


def test_a_run_without_a_cache_says_so(uncached: Path) -> None:
    assert result_of(uncached)["target_cache_by_rank"] == [None]


def test_another_target_s_features_are_never_taken(world: World) -> None:
    disk = ("target.cache=disk", f"target.cache_dir={world.root / 'features'}", "evaluate=false")
    world.train("taps_a", *disk)
    for name, more in {"taps_b": "drafter.taps=[0,1]", "dtype_b": "target.dtype=float32"}.items():
        (counts,) = result_of(world.train(name, *disk, more))["target_cache_by_rank"]
        assert counts["found"] == 0 and counts["kept"] > 0, name
