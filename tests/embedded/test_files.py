"""What ships is what was frozen, fits in the wheel, and reads as one target with two stores for the same prompts."""

import json
from pathlib import Path

import numpy as np
import pytest

import dflash_exp.embedded
from dflash_exp.data.store import Conversations, EmbeddedData, Responses, TooLong, file_sha256, read_split

FILES = Path(dflash_exp.embedded.__file__).parent / "files"
MAX_BYTES = 15 * 10**6
pytestmark = pytest.mark.skipif(not (FILES / "hashes.json").is_file(), reason="the shipped files are not here yet")


def shipped() -> dict[str, Path]:
    return {p.relative_to(FILES).as_posix(): p for p in FILES.rglob("*") if p.is_file() and p.name != "hashes.json"}


def read(responses: Responses, split: str) -> Conversations:
    return read_split(EmbeddedData(responses, None, TooLong.error).folder, split, None, TooLong.error)


def test_every_file_that_ships_has_the_hash_that_hashes_json_states() -> None:
    stated = json.loads((FILES / "hashes.json").read_text())
    assert {name: file_sha256(path) for name, path in shipped().items()} == stated
    assert "target/model.safetensors" in stated


def test_all_that_ships_is_at_most_fifteen_megabytes() -> None:
    assert sum(path.stat().st_size for path in shipped().values()) <= MAX_BYTES


def test_the_two_stores_ask_the_same_and_answer_otherwise() -> None:
    for split in ("train", "probe", "prompts"):
        model, human = read(Responses.model, split), read(Responses.human, split)
        assert model.sources == human.sources and len(model.rows) > 0
        assert all(np.array_equal(model.prompt(row), human.prompt(row)) for row in model.rows)
        assert not np.array_equal(model.tokens_N, human.tokens_N)


def test_no_file_of_the_library_is_both_trained_on_and_held_out() -> None:
    files = {split: set(read(Responses.model, split).sources) for split in ("train", "probe", "prompts")}
    assert files["train"].isdisjoint(files["probe"] | files["prompts"]) and files["probe"].isdisjoint(files["prompts"])
