"""How fast conversations become a store, in how much memory, and how fast a large store is read.

`python -m tests.benchmarks.data tokens TARGET` what `prepare` reaches of the tokenizer alone: parts of the same chunks,
    made by one process, against `encode_batch` of the same texts, in turns, in processor time; medians of rounds
`python -m tests.benchmarks.data memory TARGET MB` the peak of all processes of `prepare` at 10 MB of input and at MB
`python -m tests.benchmarks.data store TOKENS` a store of so many tokens: its opening, and random reads from page cache

TARGET is a directory with a tokenizer and a chat template. Everything is written beside the current directory's files
in a folder that is removed again: as much as MB and 5 bytes a token.
"""

import json
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from dflash_exp.data.conversation import conversation
from dflash_exp.data.part import Recipe, write_part
from dflash_exp.data.preparation import Preparation, Thinking
from dflash_exp.data.rows import values
from dflash_exp.data.sources import Chunk, chunks, find_sources
from dflash_exp.data.split_file import SplitFile
from dflash_exp.data.store import PREPARED, TooLong, file_sha256, read_split
from dflash_exp.data.template import AT_ONCE, Encoder
from dflash_exp.data.verified import note_verified
from dflash_exp.part_workers import Tokens, load_tokenizer

QUESTION, ANSWER = 300, 1500
"""Mean characters of a turn, exponentially spread; one to three exchanges a conversation."""
ROUNDS, SMALL_MB = 3, 10
MEAN_TOKENS, VOCAB_SIZE = 1000, 151_936
READS = 100_000


def write_chats(path: Path, megabytes: float) -> None:
    """Conversations cut from the standard library, anywhere in its text: half of the turns begin or end in a blank."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for file in sorted(root.rglob("*.py")) if "site-packages" not in file.parts]
    text, rng, n_bytes = "\n".join(file.read_text("utf-8", "ignore") for file in files), random.Random(0), 0
    with path.open("w", encoding="utf-8") as out:
        while n_bytes < 1e6 * megabytes:
            turns = []
            for role, mean in (("user", QUESTION), ("assistant", ANSWER)) * rng.choice([1, 1, 2, 3]):
                length = 20 + int(rng.expovariate(1 / mean))
                begin = rng.randrange(len(text) - length)
                turns.append({"role": role, "content": text[begin : begin + length]})
            n_bytes += out.write(json.dumps({"messages": turns}) + "\n")


def tokens(target: str, folder: Path) -> None:
    """Print the share of each round and their median."""
    write_chats(folder / "chats.jsonl", SMALL_MB)
    encoder = Encoder(load_tokenizer(Tokens(target, False)), last_turn_only=False)
    settings = Preparation([str(folder)], str(folder), 1, 2, None, Thinking.KEEP, False, 0.01, 0.01)
    recipe = Recipe(settings, VOCAB_SIZE)
    every = list(chunks(find_sources([str(folder / "chats.jsonl")])[0]))
    write_part(folder, every[0], encoder, recipe)  # not counted: templates are compiled, words cached
    shares = []
    for _ in range(ROUNDS):
        alone_s = ours_s = 0.0
        for chunk in every:
            texts = texts_of(chunk, encoder)
            ours_s += processor_s(lambda chunk=chunk: write_part(folder, chunk, encoder, recipe))
            alone_s += processor_s(lambda texts=texts: tokenize(texts, encoder))
        shares.append(alone_s / ours_s)
        print(f"the tokenizer {alone_s:.2f} s, prepare {ours_s:.2f} s: {shares[-1]:.1%}", flush=True)
    print(f"prepare reaches {median(shares):.1%} of the tokenizer alone (median of {ROUNDS} rounds)")


def texts_of(chunk: Chunk, encoder: Encoder) -> list[str]:
    """The texts that the part of this chunk has its tokens from."""
    attempts = [encoder._attempt(conversation(value)) for _, value in values(chunk)]
    return [one.text for one in attempts if not isinstance(one, ValueError)]


def tokenize(texts: list[str], encoder: Encoder) -> None:
    """With nothing around it, as many texts at a time as `prepare` hands over."""
    for first in range(0, len(texts), AT_ONCE):
        encoder._fast.encode_batch(texts[first : first + AT_ONCE], add_special_tokens=False)


def processor_s(call: Callable[[], object]) -> float:
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def memory(target: str, megabytes: float, folder: Path) -> None:
    """Print both peaks."""
    for size in (SMALL_MB, megabytes):
        source = folder / f"{size:g}.jsonl"
        write_chats(source, size)
        asked = ["target=hf", f"target.path={target}", f"prepare.source={source}", f"prepare.out={folder / 'store'}"]
        command = [sys.executable, "-m", "dflash_exp.cli", "prepare", *asked, "prepare.workers=2"]
        peak, seconds = peak_bytes(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        print(f"{size:g} MB: {peak / 1e6:,.0f} MB at the peak, {seconds:,.0f} s", flush=True)
        subprocess.run(["rm", "-r", str(folder / "store"), str(source)], check=True)


def peak_bytes(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """What the process and all that it started held at once, mapped files apart, and how long it took."""
    began_s, peak = time.monotonic(), 0
    while process.poll() is None:
        peak = max(peak, sum(map(anonymous_bytes, family(process.pid))))
        time.sleep(0.2)
    assert process.returncode == 0, f"prepare ended with {process.returncode}"
    return peak, time.monotonic() - began_s


def family(pid: int) -> list[int]:
    """A process and its descendants, as Linux lists them."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


def anonymous_bytes(pid: int) -> int:
    """0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def store(n_tokens: int, folder: Path) -> None:
    """Print how long the opening takes, and the speed of random reads."""
    write_store(folder, n_tokens)
    began_s = time.perf_counter()
    train = read_split(folder, "train", None, TooLong.error)
    opened_s = time.perf_counter() - began_s
    print(f"{int(train.lengths.sum()):,} tokens in {len(train.rows):,} sequences open in {opened_s:.2f} s")
    for first in range(0, len(train.tokens_N), 2**28):  # into the page cache
        train.tokens_N[first : first + 2**28].max()
    rows, speeds = np.random.default_rng(0).integers(len(train.rows), size=READS).tolist(), []
    for _ in range(ROUNDS):
        began_s, n_bytes = time.perf_counter(), 0
        for row in rows:
            n_bytes += train.tokens(row).copy().nbytes + train.supervised(row).copy().nbytes
        speeds.append(n_bytes / (time.perf_counter() - began_s))
    print(f"random sequences: {median(speeds) / 1e9:.2f} GB/s (median of {ROUNDS} rounds of {READS:,})")


def write_store(folder: Path, n_tokens: int) -> None:
    """As `prepare` leaves one, of random ids; its hash is taken and noted."""
    rng, path = np.random.default_rng(0), folder / "train.arrow"
    columns = [("tokens", pa.list_(pa.int32())), ("supervised", pa.list_(pa.uint8()))]
    schema = pa.schema([*columns, ("source", pa.string()), ("ending", pa.string())])
    with SplitFile(path, schema) as split:
        while split.n_tokens < n_tokens:
            lengths = (1 + rng.exponential(MEAN_TOKENS, 256)).astype(np.int32)
            offsets, n = pa.array(np.cumsum([0, *lengths]), pa.int32()), int(lengths.sum())
            ids, mask = rng.integers(VOCAB_SIZE, size=n, dtype=np.int32), np.ones(n, np.uint8)
            lists = [pa.ListArray.from_arrays(offsets, pa.array(numbers)) for numbers in (ids, mask)]
            split.add(pa.table([*lists, pa.array(["made up"] * 256), pa.array(["eos"] * 256)], schema))
    digest = file_sha256(path)
    note_verified(path, digest)
    said = {"file": path.name, "sha256": digest, "sequences": split.n_sequences, "tokens": split.n_tokens}
    manifest = {"format": PREPARED, "vocab_size": VOCAB_SIZE, "splits": {"train": said}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


if __name__ == "__main__":
    with TemporaryDirectory(dir=".") as name:
        match sys.argv[1:]:
            case ["tokens", target]:
                tokens(target, Path(name))
            case ["memory", target, megabytes]:
                memory(target, float(megabytes), Path(name))
            case ["store", n_tokens]:
                store(int(float(n_tokens)), Path(name))
            case _:
                sys.exit(__doc__)
