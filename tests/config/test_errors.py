"""What is wrong with a command line is said in one line, with exit code 2."""

import pytest

from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.suggest import unknown_key

WRONG = {
    "interleave=strid_jitter": "interleave has no option `strid_jitter`; did you mean `stride_jitter`?",
    "experiment=smok": "did you mean `smoke`?",
    "sweeps=interleving": "did you mean `interleaving`?",
    "interleave.jiter=0.1": "there is no key `interleave.jiter`; did you mean `interleave.jitter_strides`?",
    "+interleave.jiter=0.1": "there is no key `interleave.jiter`; did you mean `interleave.jitter_strides`?",
    "batchs.budget_tokens=9": "did you mean `batches.budget_tokens`?",
    "sed=1": "did you mean `seed`?",
    "weight_decay=1": "did you mean `optim.weight_decay`?",
    "optim.nesterov=1": "there is no key `optim.nesterov`; the keys of optim are adamw_lr, betas,",
    "interleave.jitter_strides=abc": "interleave.jitter_strides must be a number, got 'abc'",
    "interleave.jitter_strides=nan": "interleave.jitter_strides must be a number, got nan",
    "interleave.jitter_strides=null": "interleave.jitter_strides must be a number, got null",
    "interleave.jitter_strides=-1": "interleave.jitter_strides must be >= 0, got -1.0",
    "steps=1.5": "steps must be a whole number or null, got 1.5",
    "steps=0": "steps must be >= 1, got 0",
    "steps=null": "exactly one of epochs, steps and tokens must be set, got none",
    "evaluate=maybe": "evaluate must be true or false, got 'maybe'",
    "optim.schedule=cosin": "must be one of constant, cosine, wsd, got 'cosin'; did you mean `cosine`?",
    "target.dtype=float17": "got 'float17'; did you mean `float16`?",
    "optim.betas=[a,b]": "optim.betas must be a list, each item a number, got 'a'",
    "optim.betas={a:1}": "optim.betas must be a list, [a,b], got `optim.betas={a:1}`; write it as its file in",
    "seeds=[3]": "seeds must be a section, {key: value}, got `seeds=[3]`; write it as its file in conf/ does",
    "plan.counts={a:1}": "plan.counts must be a list, each item a whole number or null, got {'a': 1}",
    "telemetry.wandb.notes=[a]": "telemetry.wandb.notes must be text or null, got ['a']",
    "optim=[a]": "optim has no option `a` (options: adamw, muon)",
    "optim.betas=3": "optim.betas must be a list, each item a number, got 3",
    "pipeline.threads.target=q": "pipeline.threads.target must be a whole number or null, got 'q'",
    "pipeline.threads=3": "pipeline.threads must be a section with the keys target, drafter, got 3",
    "~seeds": "seeds.init must be given",
    "~interleave": "interleave must be one of its options, got null",
    "interleave=null": "a group takes one of its options",
    "data=store": "data.path must be given; say data.path=...",
    "name=${nothing}": "name: Interpolation key 'nothing' not found",
    "interleave=shuffle,stride_jitter": "to sweep over it add -m",
    "shuffle": "`shuffle` cannot be read: there is no `=`",
    "plan.counts=[": "`plan.counts=[` cannot be read",
    "--max-steps=3": "unrecognized arguments: --max-steps=3; overrides are written key=value",
    "--config-dir=/no/such/folder": "--config-dir must be a directory",
    "hydra.run.dir=x": "a run's directory is run_dir=...",
    "extensions=mine": "extensions must be a list of modules, got 'mine'; say extensions=[my_package]",
}

FOREIGN = {
    "logger": "telemetry",
    "lr": "optim.lr",
    "max_steps": "steps",
    "num_epochs": "epochs",
    "grad_accum": "batches_per_step",
    "num_anchors": "drafter.anchors",
    "loss_decay_gamma": "loss.gamma",
    "target_model_path": "target.path",
}


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that is refused."""
    assert main(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(("override", "line"), WRONG.items())
def test_a_wrong_override_is_one_line_and_exit_code_2(
    override: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refusal(capsys, "train", override)


def test_two_lengths_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "train", "epochs=2", "steps=600")
    assert "exactly one of epochs, steps and tokens must be set, got epochs=2 steps=600; say steps=null" in said


@pytest.mark.parametrize("length", ["epochs=2", "steps=7", "tokens=1000"])
def test_a_length_on_the_command_line_replaces_the_experiments_own(length: str) -> None:
    config = compose(["experiment=smoke", length])
    given = {key: value for key, value in vars(config).items() if key in ("epochs", "steps", "tokens")}
    key, _, value = length.partition("=")
    assert {name: got for name, got in given.items() if got is not None} == {key: int(value)}


def test_plan_refuses_as_train_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean `stride_jitter`?" in refusal(capsys, "plan", "interleave=strid_jitter")


@pytest.mark.parametrize(("foreign", "ours"), FOREIGN.items())
def test_names_of_other_frameworks_are_known(foreign: str, ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"there is no key `{foreign}`; did you mean `{ours}`?" in refusal(capsys, "train", f"{foreign}=1")


def test_a_plus_does_not_let_a_foreign_name_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no key `max_steps`; did you mean `steps`?" in refusal(capsys, "train", "+max_steps=1")


def test_a_mistyped_verb_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no verb `trian`; did you mean `train`?" in refusal(capsys, "trian")


def test_overrides_without_a_verb_are_told_where_to_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert "dflash-exp train interleave=shuffle" in refusal(capsys, "interleave=shuffle")


def test_a_wrong_option_of_evaluate_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized arguments: --limt" in refusal(capsys, "evaluate", "runs/x", "--limt=3")
    assert "PATH must be a run's directory or a drafter's, got none" in refusal(capsys, "evaluate")


def test_the_last_job_of_a_sweep_is_refused_before_the_first_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be >= 0, got -1.0" in refusal(capsys, "train", "-m", "interleave.jitter_strides=0,1,-1")


def test_a_word_that_is_near_nothing_lists_the_keys_there_are() -> None:
    assert unknown_key("optim.zzz", ["optim", "optim.lr", "seed"]) == (
        "there is no key `optim.zzz`; the keys of optim are lr"
    )
