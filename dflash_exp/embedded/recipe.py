"""The recipe: from a Python's standard library to the target, its tokenizer and the conversations that ship.

    python -m dflash_exp.embedded.recipe OUT                 # about an hour and a half on two cores
    python -m dflash_exp.embedded.recipe OUT --device cuda --target-minutes 4

Three stages, each leaving its files in OUT, a stage whose files are there being skipped: `target/` with its loss curve,
`sampled.arrow` (every conversation with the target's own response), `files/` (what ships, with hashes).
"""

import argparse
import json
import sysconfig
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from dflash_exp.embedded.conversations import Conversation, LengthLaw, make_conversations
from dflash_exp.embedded.corpus import Function, functions_of, library_files, split_of
from dflash_exp.embedded.language_model import Training, build_language_model, train_language_model
from dflash_exp.embedded.pack import pack
from dflash_exp.embedded.responses import sample_responses
from dflash_exp.embedded.tokenizer import MASK_ID, train_tokenizer
from dflash_exp.optim import Muon, Schedule

VOCAB_SIZE = 280
"""All bytes and 19 merges: a token is a character or two, so a small drafter learns to predict several in a row."""
MASK_ROW_NORM = 0.1
"""The head is tied: with an untrained mask row of full size every slot of a fresh drafter first predicts "mask"."""
MEDIAN_PROMPT_TOKENS, SIGMA, MAX_PROMPT_TOKENS = 110.0, 1.1, 1990
TRAINED_RESPONSE_TOKENS = 416
"""The target learns from responses that end by this length, so that its own rarely meet the cap."""
CAP = 512
TEMPERATURE = 0.4
TESTS_EVERY = 4
"""The library's own tests are two thirds of its functions; conversations are drawn from every fourth of them."""
WANTED = {"train": 9800, "probe": 320, "prompts": 400}
"""Conversations sampled of each split, before `pack` leaves out what is too short or too long."""
HELD_OUT_EVERY = 24
"""The loss curve is taken on every 24th conversation of the probe files."""
OPTIM = Muon(
    lr=0.02,
    momentum=0.95,
    weight_decay=0.1,
    adamw_lr=3e-3,
    betas=[0.9, 0.95],
    schedule=Schedule.wsd,
    warmup_share=0.02,
    decay_share=0.5,
    max_grad_norm=1.0,
)
SAMPLED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("split", pa.string()),
        ("prompt", pa.list_(pa.uint16())),
        ("response", pa.list_(pa.uint16())),
        ("ending", pa.string()),
        ("human", pa.list_(pa.uint16())),
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--library", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--target-minutes", type=float, default=45.0)
    parser.add_argument("--budget-tokens", type=int, default=4096, help="padded tokens a training step")
    parser.add_argument("--batch-tokens", type=int, default=65536, help="padded tokens a sampling batch")
    parser.add_argument("--train-sequences", type=int, default=5800)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lines, functions = read_library(options.library)
    if not (options.out / "target" / "model.safetensors").exists():
        make_target(options, lines, functions)
    if not (options.out / "sampled.arrow").exists():
        make_responses(options, lines, functions)
    pack(options.out, options.train_sequences, options.seed)


def read_library(root: Path) -> tuple[dict[str, list[str]], list[Function]]:
    """Lines by file, and every function, in the order of the files' names."""
    lines: dict[str, list[str]] = {}
    functions: list[Function] = []
    for name, text in library_files(root):
        lines[name] = text.split("\n")
        functions += functions_of(name, text)
    print(
        f"{len(lines)} files, {len(functions)} functions, {sum(f.is_test for f in functions)} of them in tests",
        flush=True,
    )
    return lines, functions


def length_law(tokenizer: PreTrainedTokenizerFast, lines: dict[str, list[str]], max_response_tokens: int) -> LengthLaw:
    """The law with this tokenizer's characters a token, measured on a sample of files."""
    sample = "\n".join("\n".join(lines[name]) for name in sorted(lines)[::40])
    ratio = len(sample) / len(tokenizer.encode(sample, add_special_tokens=False, verbose=False))
    return LengthLaw(MEDIAN_PROMPT_TOKENS, SIGMA, MAX_PROMPT_TOKENS, max_response_tokens, ratio)


def make_target(options: argparse.Namespace, lines: dict[str, list[str]], functions: list[Function]) -> None:
    """Tokenizer and target, trained on the train files only; held-out loss on the probe files."""
    names = sorted({f.file for f in functions if split_of(f.file) == "train" and not f.is_test})
    tokenizer = train_tokenizer(("\n".join(lines[name]) for name in names), VOCAB_SIZE)
    law = length_law(tokenizer, lines, TRAINED_RESPONSE_TOKENS)
    rng = np.random.default_rng(options.seed)
    chosen = [f for f in functions if split_of(f.file) == "train"]
    made, left_out = make_conversations(chosen, lines, tokenizer, law, rng)
    train = [_sequence(c) for c in made]
    print(f"{len(made)} conversations, left out: {dict(left_out)}", flush=True)
    probe = [f for f in functions if split_of(f.file) == "probe"]
    held_out = [_sequence(c) for c in make_conversations(probe, lines, tokenizer, law, rng)[0]][::HELD_OUT_EVERY]
    training = Training(
        options.target_minutes,
        options.budget_tokens,
        options.device,
        options.seed,
        OPTIM,
        60.0 * options.target_minutes / 30,
    )
    model = build_language_model(VOCAB_SIZE, options.seed)
    curve = train_language_model(model, train, held_out, training)
    save_target(model, tokenizer, options.out / "target")
    on_cuda = options.device == "cuda"
    record = {
        "device": torch.cuda.get_device_name() if on_cuda else f"cpu, {torch.get_num_threads()} threads",
        "training": asdict(training),
        "prompt_law": asdict(law),
        "train_sequences": len(train),
        "train_tokens_a_pass": int(sum(map(len, train))),
        "curve": [asdict(point) for point in curve],
    }
    (options.out / "target_training.json").write_text(json.dumps(record, indent=1))


@torch.no_grad()
def save_target(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, path: Path) -> None:
    """bf16, with the mask row scaled."""
    nn.Module.to(model, "cpu")
    row = model.model.embed_tokens.weight[MASK_ID]
    row.mul_(MASK_ROW_NORM / row.norm())
    nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(path, safe_serialization=True)
    tokenizer.save_pretrained(path)


def make_responses(options: argparse.Namespace, lines: dict[str, list[str]], functions: list[Function]) -> None:
    """A seeded choice of conversations, each with a sampled response; greedy ones for the prompts."""
    tokenizer = AutoTokenizer.from_pretrained(options.out / "target")
    model = Qwen3ForCausalLM.from_pretrained(options.out / "target", dtype=torch.bfloat16)
    nn.Module.to(model, options.device)
    law = length_law(tokenizer, lines, TRAINED_RESPONSE_TOKENS)
    rng = np.random.default_rng(options.seed + 1)
    pool = [f for f in functions if not f.is_test] + [f for f in functions if f.is_test][::TESTS_EVERY]
    made, left_out = make_conversations(pool, lines, tokenizer, law, rng)
    made = [made[i] for i in rng.permutation(len(made))]
    print(f"{len(made)} conversations, left out: {dict(left_out)}", flush=True)
    by_split = {split: [c for c in made if split_of(c.file) == split][:n] for split, n in WANTED.items()}
    columns: dict[str, list[object]] = {name: [] for name in SAMPLED_SCHEMA.names}
    for temperature, splits in ((TEMPERATURE, ("train", "probe")), (0.0, ("prompts",))):
        chosen = [c for split in splits for c in by_split[split]]
        responses = sample_responses(
            model, [c.prompt for c in chosen], CAP, temperature, options.batch_tokens, options.seed
        )
        for c, r in zip(chosen, responses, strict=True):
            values = (c.file, split_of(c.file), c.prompt, r.tokens, r.ending.value, c.response)
            for name, value in zip(SAMPLED_SCHEMA.names, values, strict=True):
                columns[name].append(value)
        print(f"{len(chosen)} responses at temperature {temperature}", flush=True)
    table = pa.table(columns, schema=SAMPLED_SCHEMA)
    with (
        pa.OSFile(str(options.out / "sampled.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer,
    ):
        writer.write_table(table)


def _sequence(conversation: Conversation) -> np.ndarray:
    return np.array(conversation.prompt + conversation.response, dtype=np.uint16)


if __name__ == "__main__":
    main()
