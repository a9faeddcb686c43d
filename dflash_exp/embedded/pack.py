"""From sampled conversations to the files that ship: two stores that share their prompts, the target, hashes.

In: a folder with `target/`, `target_training.json` and `sampled.arrow`. Out: its `files/`:
`target/`, `conversations_model/`, `conversations_human/`, `record.json` (how they came about, and a table by length
bucket) and `hashes.json`. Left out, and counted in the record: responses shorter than `MIN_RESPONSE_TOKENS`, sequences
outside `MIN_TOKENS`..`MAX_TOKENS`, loops over `MAX_LOOP_SHARE`, and what is over the wanted number of sequences.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from transformers import Qwen3ForCausalLM

from dflash_exp.data.prepare import Row, write_store
from dflash_exp.data.store import file_sha256

MIN_RESPONSE_TOKENS = 8
MIN_TOKENS, MAX_TOKENS = 30, 2048
N_PROBE = 256
N_PROMPTS = 320
N_BUCKETS = 6
MAX_LOOP_SHARE = 0.2
"""Of each length bucket: responses that were cut where a loop begins, beyond which they are left out. Short prompts
loop more often, and a share that follows the length would be mistaken for an effect of the length."""
ENTROPY_SEQUENCES = 64
"""The target's entropy is taken on this many sequences of each bucket."""


@dataclass(frozen=True)
class Sampled:
    """A row of `sampled.arrow`."""

    file: str
    split: str
    prompt: list[int]
    response: list[int]
    ending: str
    human: list[int]

    @property
    def n_tokens(self) -> int:
        return len(self.prompt) + len(self.response)


def pack(out: Path, n_train: int, seed: int) -> None:
    """Write `out/files`; it must not exist yet."""
    rows = [Sampled(**row) for row in pa.ipc.open_file(str(out / "sampled.arrow")).read_all().to_pylist()]
    rng = np.random.default_rng(seed)
    chosen: dict[str, list[Sampled]] = {}
    left_out: Counter[str] = Counter()
    for split, wanted in (("train", n_train), ("probe", N_PROBE), ("prompts", N_PROMPTS)):
        fit, reasons = _fitting([r for r in rows if r.split == split])
        left_out.update(reasons)
        if split != "prompts":
            n_fit = len(fit)
            fit = evened(fit, MAX_LOOP_SHARE, rng)
            left_out["loops over the share"] += n_fit - len(fit)
        kept = np.sort(rng.permutation(len(fit))[:wanted])
        chosen[split] = [fit[i] for i in rng.permutation(kept)]
        left_out[f"{split} over the number wanted"] = len(fit) - len(kept)
    files = out / "files"
    shutil.copytree(out / "target", files / "target")
    vocab_size = json.loads((files / "target" / "config.json").read_text())["vocab_size"]
    for name, human in (("conversations_model", False), ("conversations_human", True)):
        splits = {split: [_row(s, human) for s in sampled] for split, sampled in chosen.items()}
        write_store(files / name, splits, vocab_size, compress=True)
    record = {
        "target": json.loads((out / "target_training.json").read_text()),
        "conversations": {split: len(sampled) for split, sampled in chosen.items()},
        "left_out": dict(left_out),
        "prompts_not_looping": sum(s.ending != "loop" for s in chosen["prompts"]),
        "by_bucket": describe_by_bucket(chosen["train"], files / "target"),
    }
    (files / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    write_hashes(files)
    print(json.dumps(record["by_bucket"], indent=1))


def write_hashes(files: Path) -> None:
    """sha256 of every shipped file but the list itself."""
    found = {
        p.relative_to(files).as_posix(): file_sha256(p)
        for p in sorted(files.rglob("*"))
        if p.is_file() and p.name != "hashes.json"
    }
    (files / "hashes.json").write_text(json.dumps(found, indent=1) + "\n")


def evened(rows: list[Sampled], max_share: float, rng: np.random.Generator) -> list[Sampled]:
    """The rows without a random choice of those that loop, so that in no length bucket they are more than the share."""
    bucket = length_buckets(np.array([row.n_tokens for row in rows]))[1]
    loops = np.array([row.ending == "loop" for row in rows])
    left_out: set[int] = set()
    for b in range(N_BUCKETS):
        n_others = int(((bucket == b) & ~loops).sum())
        n_kept = int(n_others * max_share / (1 - max_share))
        left_out |= set(rng.permutation(np.flatnonzero((bucket == b) & loops))[n_kept:].tolist())
    return [row for i, row in enumerate(rows) if i not in left_out]


def length_buckets(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds of six buckets of equal counts, and the bucket of each length."""
    edges = np.quantile(lengths, np.arange(1, N_BUCKETS + 1) / N_BUCKETS, method="higher")
    return edges, np.searchsorted(edges, lengths)


def describe_by_bucket(sampled: list[Sampled], target: Path) -> list[dict[str, float]]:
    """By quantile bucket: sequences, supervised positions, shares of cap and loop endings, target entropy (nats)."""
    lengths = np.array([s.n_tokens for s in sampled])
    edges, bucket = length_buckets(lengths)
    measured = [
        [s for s, k in zip(sampled, bucket, strict=True) if k == b][:ENTROPY_SEQUENCES] for b in range(N_BUCKETS)
    ]
    entropies = [np.mean(list(response_entropies(some, target))) for some in measured]
    return [
        {
            "edge": int(edges[b]),
            "sequences": int((bucket == b).sum()),
            "tokens": int(lengths[bucket == b].sum()),
            "anchor_candidates": sum(len(s.response) - 1 for s, k in zip(sampled, bucket, strict=True) if k == b),
            "cap_share": _share(sampled, bucket == b, "cap"),
            "loop_share": _share(sampled, bucket == b, "loop"),
            "target_entropy": round(float(entropies[b]), 3),
        }
        for b in range(N_BUCKETS)
    ]


@torch.no_grad()
def response_entropies(sampled: list[Sampled], target: Path) -> Iterable[float]:
    """Mean entropy, in nats, of the target's next-token distributions over each response."""
    model = Qwen3ForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    for s in sampled:
        n = len(s.response)
        logits_TV = model(torch.tensor([s.prompt + s.response]), logits_to_keep=n + 1, use_cache=False).logits[0, :n]
        log_p_TV = logits_TV.log_softmax(-1)
        yield float(-(log_p_TV.exp() * log_p_TV).sum(-1).mean())


def _share(sampled: list[Sampled], chosen: np.ndarray, ending: str) -> float:
    return round(float(np.mean([s.ending == ending for s, c in zip(sampled, chosen, strict=True) if c])), 4)


def _fitting(rows: list[Sampled]) -> tuple[list[Sampled], Counter[str]]:
    left_out: Counter[str] = Counter()
    fit: list[Sampled] = []
    for row in rows:
        if min(len(row.response), len(row.human)) < MIN_RESPONSE_TOKENS:
            left_out["response too short"] += 1
        elif min(row.n_tokens, len(row.prompt) + len(row.human)) < MIN_TOKENS:
            left_out["sequence too short"] += 1
        elif max(row.n_tokens, len(row.prompt) + len(row.human)) > MAX_TOKENS:
            left_out["sequence too long"] += 1
        else:
            fit.append(row)
    return fit, left_out


def _row(sampled: Sampled, human: bool) -> Row:
    response, ending = (sampled.human, "eos") if human else (sampled.response, sampled.ending)
    mask = [False] * len(sampled.prompt) + [True] * len(response)
    return Row(sampled.prompt + response, mask, sampled.file, ending)
