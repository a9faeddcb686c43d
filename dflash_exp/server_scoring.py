"""Ask a running server for the prompts that would be decoded here: the verb `evaluate` with --server.

In: an address, and the run or drafter that is served there, or only its target. Out: server-evaluation.json, or the
first free name beside it, in the form of evaluation.json. No weights are loaded: whether its texts are the target's own
is not asked here, and what is served is the server's word.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from dflash_exp.config import Config, EvaluateOptions
from dflash_exp.console import LastingConsole
from dflash_exp.data.regeneration import SERVER
from dflash_exp.decode import DecodeConfig
from dflash_exp.export import find_drafter
from dflash_exp.models import located
from dflash_exp.paper import Reported
from dflash_exp.part_workers import Tokens, load_tokenizer
from dflash_exp.prompt_files import PromptSet
from dflash_exp.published import read_shape
from dflash_exp.scoring import by_thinking, decoding_of, keep, paper_s, prompt_sets, target_of
from dflash_exp.served.engines import Asking
from dflash_exp.served.figures import served_evaluation
from dflash_exp.served.measuring import Served, served
from dflash_exp.suggest import ConfigError

WRITTEN = "server-evaluation.json"


def evaluate_server(path: Path | None, config: Config | None, options: EvaluateOptions) -> int:
    """The verb: `path` is the run, whose `config` it is, or the drafter that is served; None: the server alone, and
    the file goes into the current directory. Raises ConfigError."""
    console = LastingConsole()
    try:
        evaluation, paper = _evaluated(path, config, options, console)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return keep((path or Path(".")) / WRITTEN, evaluation, paper, console)


def _evaluated(
    path: Path | None, config: Config | None, options: EvaluateOptions, console: LastingConsole
) -> tuple[dict[str, Any], Reported | None]:
    """What is written, and what the paper reports of it. Raises ValueError."""
    address, key = _address(options)
    folder = None if path is None else find_drafter(path, options.checkpoint)
    shape = None if folder is None else read_shape(folder)
    target = located(target_of(path or Path("."), config, options))
    tokenizer: Any = load_tokenizer(Tokens(target.path, target.trust_remote_code))
    decoding = decoding_of(config, options, ())
    whose = {"prompts_file": options.prompts, "temperature": decoding.temperature, "server": address}
    whose["checkpoint"] = None if folder is None else folder.name
    sets = prompt_sets(config, options, tokenizer)

    def measured(one: PromptSet) -> dict[str, Any]:
        told = _asked(address, key, [prompt.tolist() for prompt in one.prompts], decoding, console)
        figures = served_evaluation(told.completions, partial(tokenizer.encode, add_special_tokens=False))
        _say(console, told, figures, None if shape is None else shape.block_size - 1)
        return figures | {"engine": told.engine, "model": told.model} | whose

    evaluation = by_thinking(sets, measured)
    if folder is None or shape is None:
        return evaluation, None
    return evaluation, paper_s(folder, shape, target.path, sets, decoding, options)


def _address(options: EvaluateOptions) -> tuple[str, str | None]:
    """The server's, and its key."""
    assert options.server is not None, "only then is it asked"
    if not SERVER.fullmatch(options.server):
        raise ValueError(
            f"--server must be http://HOST:PORT or https://..., without user or query, got "
            f"{options.server if '@' not in options.server else 'one with @'}; a key belongs in --api-key-env"
        )
    key = None if options.api_key_env is None else os.environ.get(options.api_key_env)
    if options.api_key_env is not None and not key:
        raise ValueError("--api-key-env must name a variable that is set, got one that is not; export it")
    return options.server, key


def _asked(
    address: str, key: str | None, prompts: Sequence[Sequence[int]], decoding: DecodeConfig, console: Console
) -> Served:
    asking = Asking(decoding.max_new_tokens, decoding.temperature, decoding.seed)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("ask", total=len(prompts))
        return served(address, key, prompts, asking, lambda n_done: bar.update(task, completed=n_done))


def _say(console: LastingConsole, told: Served, figures: dict[str, Any], drafts: int | None) -> None:
    """Whose figures these are, and what makes them doubtful."""
    proposed = max(len(one.counts.accepted_at) for one in told.completions)
    console.say(f"{told.engine} serves {told.model}, {proposed} drafted tokens a step at most")
    if drafts is not None and told.engine == "vllm" and drafts != proposed:
        console.say(f"the drafter has {drafts} slots to draft: is it the one that is served there?")
    others = figures["other_traffic"]
    if others["tokens"]:
        console.say(
            f"other requests were served meanwhile: {others['tokens']:,} tokens of theirs, in {others['prompts']} of "
            f"{figures['prompts']} prompts, which tau, slots and rates leave out"
        )
