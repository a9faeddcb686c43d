"""Decode held-out prompts with a target and a drafter: the end of training, and the verb `evaluate`.

In: a loaded target, a drafter, prompts from the store or from a JSONL file. Out: the content of evaluation.json.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from dflash_exp.architecture import TargetShape
from dflash_exp.config import Config, EvaluateOptions
from dflash_exp.console import LastingConsole
from dflash_exp.data.store import EmbeddedData, Responses, StoreData, TooLong, read_split
from dflash_exp.decode import DecodeConfig
from dflash_exp.distributed import devices_in_a_row
from dflash_exp.doctor.examination import examine
from dflash_exp.doctor.reading import Conversation, Text
from dflash_exp.drafter.model import ComputeDtype, Drafter
from dflash_exp.drafter.session import DraftSession
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.evaluation import Hosts, decode_pairs, evaluation, until_stopped
from dflash_exp.export import find_drafter
from dflash_exp.messages import ShareOut
from dflash_exp.models import EMBEDDED, LoadedTarget, load
from dflash_exp.paper import Reported, reported
from dflash_exp.prompt_files import PromptSet, file_prompts
from dflash_exp.published import load_weights, read_shape
from dflash_exp.ranks import Alone, share_out
from dflash_exp.run_directory import finished, free_file, write_json
from dflash_exp.suggest import ConfigError
from dflash_exp.summary import print_evaluation
from dflash_exp.target import TargetConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EMBEDDED_DATA = EmbeddedData(Responses.model, None, TooLong.error)
EXAMINED, EXAMINED_TOKENS = 16, 512
"""Held-out conversations that are examined, and tokens of each."""
MAX_NEW_TOKENS = 128
"""Where neither the command line nor a run's configuration says it."""


def evaluate(path: Path, config: Config | None, options: EvaluateOptions) -> int:
    """The verb: `path` is a run, whose `config` it is, or a folder with a drafter alone. evaluation.json, or the first
    free name beside it, is written there; of a run that has not finished evaluation-<checkpoint>.json."""
    console = LastingConsole()
    try:
        folder = find_drafter(path, options.checkpoint)
        shape = read_shape(folder)
        wanted_target = replace(target_of(path, config, options), mask_token_id=shape.mask_token_id)
        devices = devices_in_a_row("cuda" if torch.cuda.is_available() else "cpu", wanted_target.layer_split)
        target = load(wanted_target, devices, lambda dims, _: check_fits(shape, dims, folder))
        drafter = target.new_drafter(ComputeDtype.auto if config is None else config.drafter.compute_dtype)
        load_weights(drafter, folder)
        decoding = decoding_of(config, options, target.eos_ids)
        sets = prompt_sets(config, options, target.tokenizer)
        data = examined_data(_data_of(config, target, console))
        to_come = config is not None and not finished(path)  # evaluation.json is what its training will write
        wanted = f"evaluation-{folder.name}.json" if to_come else "evaluation.json"
        paper = paper_s(folder, shape, wanted_target.path, sets, decoding, options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    scored = lambda prompts: score(  # noqa: E731
        target, drafter, prompts, data, decoding, folder.name, console, lambda: False, partial(share_out, Alone())
    )
    told = by_thinking(sets, lambda one: scored(one.prompts) | {"prompts_file": options.prompts})
    return keep(path / wanted, told, paper, console)


def by_thinking(sets: Sequence[PromptSet], measured: Callable[[PromptSet], dict[str, Any]]) -> dict[str, Any]:
    """Each setting's figures, thinking on first; what stands at the top is off, as in the paper."""
    evaluation: dict[str, Any] = {}
    for one in reversed(sets):
        aside = {"thinking_on": evaluation} if evaluation else {}
        evaluation = measured(one) | {"thinking": one.thinking} | aside
    return evaluation


def keep(wanted: Path, evaluation: dict[str, Any], paper: Reported | None, console: LastingConsole) -> int:
    """Write it there, or into the first free name beside it, and show it, which is done whatever the disk says."""
    out = free_file(wanted)
    try:
        write_json(out, evaluation)
    finally:
        print_evaluation(console, evaluation, paper)
    console.say(f"written to {out}")
    return 0


def score(
    target: LoadedTarget,
    drafter: Drafter,
    prompts: Sequence[Tensor],
    data: Sequence[Conversation],
    decoding: DecodeConfig,
    checkpoint: str,
    console: Console,
    asked_to_stop: Callable[[], bool],
    among_ranks: ShareOut,
) -> dict[str, Any]:
    """Decode every prompt plainly and speculatively, and, greedy, explain what came of it. Raises Stopped."""
    if not console.is_terminal:
        console.print(f"decoding {len(prompts)} prompts, plainly and speculatively", highlight=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decode", total=len(prompts))

        def show(done: int, _: int) -> None:
            bar.update(task, completed=done)

        sessions = lambda: DraftSession(drafter)  # noqa: E731
        hosts = Hosts(time.perf_counter, show, asked_to_stop, among_ranks)
        pairs = decode_pairs(target.model, sessions, prompts, decoding, hosts)
    told = evaluation(pairs, drafter.shape.block_size, decoding.temperature, checkpoint)
    if decoding.temperature > 0:
        return told
    texts = [Text(prompt_P, pair.plain, pair.speculative) for prompt_P, pair in zip(prompts, pairs, strict=True)]
    examined = examine(
        target.model, drafter, texts, data, decoding.max_new_tokens, target.words,
        partial(until_stopped, asked_to_stop, among_ranks),
    )  # fmt: skip
    return told | {"doctor": examined}


def store_prompts(data: EmbeddedData | StoreData, limit: int | None) -> list[Tensor]:
    """The first `limit` prompts of a store."""
    conversations = read_split(data.folder, "prompts", None, TooLong.error)
    return [torch.from_numpy(conversations.prompt(row).astype("int64")) for row in conversations.rows[:limit]]


def examined_data(data: EmbeddedData | StoreData | None) -> list[Conversation]:
    """The first held-out conversations of the data, cut at `EXAMINED_TOKENS`; none of none."""
    if data is None:
        return []
    held_out = read_split(data.folder, "probe", None, TooLong.error)
    return [
        Conversation(
            torch.from_numpy(held_out.tokens(row)[:EXAMINED_TOKENS].astype("int64")),
            torch.from_numpy(held_out.supervised(row)[:EXAMINED_TOKENS].astype(bool)),
        )
        for row in held_out.rows[:EXAMINED]
    ]


def paper_s(
    folder: Path, shape: DrafterShape, target: str, sets: Sequence[PromptSet], decoding: DecodeConfig,
    options: EvaluateOptions,
) -> Reported | None:  # fmt: skip
    """What the paper reports of just this: its drafter, target and benchmark, thinking off, greedily."""
    as_the_paper = sets[0].thinking is False and decoding.temperature == 0
    return reported(folder, shape, target, options.prompts) if as_the_paper else None


def check_fits(shape: DrafterShape, target: TargetShape, folder: Path) -> DrafterShape:
    """The shape, with the target's depth where the drafter does not state it; ValueError unless it was made for a
    target of these sizes."""
    shape = replace(shape, n_target_layers=shape.n_target_layers or target.n_layers)
    wanted = (shape.hidden_size, shape.vocab_size, shape.n_target_layers)
    found = (target.hidden_size, target.vocab_size, target.n_layers)
    if wanted != found:
        raise ValueError(
            f"--target must have the hidden size, vocabulary and layers that the drafter in {folder} was made for, "
            f"{wanted}, got {found}; name its own target"
        )
    return shape


def target_of(path: Path, config: Config | None, options: EvaluateOptions) -> TargetConfig:
    """The one that was named, else the run's. Raises ValueError where neither is there."""
    if options.target is not None:
        return options.target
    if config is None:
        raise ValueError(
            f"--target must name the drafter's target, got none and {path} is no run that would say it; "
            "`--target embedded` is the one that ships"
        )
    return config.target


def _data_of(config: Config | None, target: LoadedTarget, console: LastingConsole) -> EmbeddedData | StoreData | None:
    """What a drafter was trained on, where that is known and here: prompts of a file are decoded without it."""
    if config is None:
        return EMBEDDED_DATA if target.is_embedded else None
    if not config.data.folder.is_dir():
        console.say(f"{config.data.folder} is not here: what the doctor measures on the data is not known")
        return None
    return config.data


def decoding_of(config: Config | None, options: EvaluateOptions, eos_ids: tuple[int, ...]) -> DecodeConfig:
    """How far and how to decode: as it was said, else as the run has it. Raises ValueError."""
    by_default = MAX_NEW_TOKENS if config is None else config.prompts.max_new_tokens
    wanted = by_default if options.max_new_tokens is None else options.max_new_tokens
    return DecodeConfig(wanted, options.temperature or 0.0, 0 if config is None else config.seed, eos_ids)


def prompt_sets(
    config: Config | None, options: EvaluateOptions, tokenizer: "PreTrainedTokenizerBase"
) -> list[PromptSet]:
    """The file's prompts, else those of the run's store, else, for the embedded target, those that ship. Raises
    ValueError."""
    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit must be >= 1, got {options.limit}; leave it out for the run's own number")
    limit = options.limit if options.limit is not None or config is None else config.prompts.limit
    if options.prompts is not None:
        return file_prompts(Path(options.prompts), tokenizer, limit)
    named = None if options.target is None else options.target.path
    if config is None and named != EMBEDDED:
        raise ValueError(
            f"--prompts must name a file for a target other than the embedded one, got none for {named}; the prompts "
            "that ship are ids of its own vocabulary"
        )
    return [PromptSet(store_prompts(EMBEDDED_DATA if config is None else config.data, limit))]
