"""The verb evaluate."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.options import group_options
from dflash_exp.suggest import ConfigError, parsed
from dflash_exp.verbs.verb import Verb

if TYPE_CHECKING:
    from dflash_exp.config import Config
    from dflash_exp.target import TargetConfig

NOT_NAMED = ("hf", "embedded")
"""Options of the group `target` that `--target` does not take for one: a path must be added, or is the name itself."""


def evaluate(arguments: list[str]) -> int:
    """Decode for real, plain and speculative."""
    from dflash_exp.config import EvaluateOptions
    from dflash_exp.door import load

    given = parsed(_parser(), arguments, "see dflash-exp evaluate --help")
    path = _path(given.path, given.server)
    run_config = None if path is None else path / "config.yaml"
    config = load(run_config) if run_config is not None and run_config.is_file() else None
    said = {name: value for name, value in vars(given).items() if name not in ("path", "target")}
    options = EvaluateOptions(target=_target(given.target, config), **said)
    if options.server is not None:
        from dflash_exp.server_scoring import evaluate_server

        return evaluate_server(path, config, options)
    from dflash_exp.scoring import evaluate as decode_for_real

    assert path is not None, "without a server there is one"
    return decode_for_real(path, config, options)


def _target(given: str | None, config: "Config | None") -> "TargetConfig | None":
    """An option of the group `target` as it is configured; else where a target lies, or its hub id, in the number
    format of the run."""
    from dflash_exp.compose import compose
    from dflash_exp.target import TargetConfig, TargetDtype

    if given is None:
        return None
    if given in group_options()["target"] and given not in NOT_NAMED and not Path(given).exists():
        return compose([f"target={given}"]).target
    return TargetConfig(given, TargetDtype.FLOAT32 if config is None else config.target.dtype)


def _path(given: str | None, server: str | None) -> Path | None:
    """The run's or the drafter's directory; None where a server alone was named."""
    if given is None and server is not None:
        return None
    if given is None or not Path(given).is_dir():
        got = "none" if given is None else given
        raise ConfigError(f"PATH must be a run's directory or a drafter's, got {got}; `ls runs` shows the runs here")
    return Path(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dflash-exp evaluate", add_help=False, allow_abbrev=False)
    parser.add_argument("path", metavar="PATH", nargs="?", help="a run's directory, or a drafter's, ours or published")
    parser.add_argument(
        "--target", metavar="TARGET", help="a directory, a hub id, or as conf/ names it (qwen3_4b); a drafter needs it"
    )
    parser.add_argument(
        "--prompts", metavar="FILE", help="JSONL: prompts, messages, rows of GSM8K, HumanEval, MT-Bench"
    )
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="tokens a prompt is continued by")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: greedy")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts, at most")
    parser.add_argument("--checkpoint", metavar="NAME", help="another checkpoint than the latest")
    parser.add_argument("--server", metavar="URL", help="vLLM or SGLang where it is served; PATH may be left out")
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the server's key")
    return parser


VERB = Verb(
    "evaluate",
    "PATH",
    "decode for real, plain and speculative, and compare every token",
    (
        "dflash-exp evaluate runs/NAME",
        "dflash-exp evaluate Qwen3-4B-DFlash-b16 --target qwen3_4b --prompts gsm8k.jsonl --limit 64",
    ),
    evaluate,
    _parser,
)
