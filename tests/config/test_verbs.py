"""The verbs hand checked configurations on, one job after the other, and nothing but the runs writes anything."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from dflash_exp import cli
from dflash_exp.cli import VERBS, main
from dflash_exp.compose import compose
from dflash_exp.config import Config, EvaluateOptions, identity
from dflash_exp.door import to_yaml
from dflash_exp.order_alone import Arm
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError
from dflash_exp.target import TargetConfig, TargetDtype


class FakeExperiment(ModuleType):
    """Stands in for experiment, planning and scoring: notes what it is handed and answers as told."""

    def __init__(self, answer: Callable[[Config], int]) -> None:
        super().__init__("fake")
        self.configs: list[Config] = []
        self.overrides: list[list[str]] = []
        self.evaluated: list[tuple[Path, Config | None, EvaluateOptions]] = []
        self.answer = answer

    def start(self, config: Config, overrides: list[str], stop: StopSignals) -> int:
        self.overrides.append(overrides)
        return self.show_plan(config)

    def show_plan(self, config: Config, *_: object) -> int:
        self.configs.append(config)
        return self.answer(config)

    Arm = Arm

    def check_order_alone(self, arms: list[Arm]) -> None:
        """All orders are fine."""

    def evaluate(self, path: Path, config: Config | None, options: EvaluateOptions) -> int:
        self.evaluated.append((path, config, options))
        return 0


Faked = Callable[[Callable[[Config], int]], FakeExperiment]


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Faked:
    """A way to put a fake experiment in place, in an empty current directory."""
    monkeypatch.chdir(tmp_path)

    def put(answer: Callable[[Config], int]) -> FakeExperiment:
        fake = FakeExperiment(answer)
        for name in ("rank", "planning", "scoring", "order_alone"):
            monkeypatch.setitem(sys.modules, f"dflash_exp.{name}", fake)
        return fake

    return put


def done(config: Config) -> int:
    return 0


def test_train_hands_on_the_configuration_and_what_the_user_typed(faked: Faked) -> None:
    fake = faked(done)
    assert main(["train", "steps=3", "interleave=shuffle"]) == 0
    assert [config.steps for config in fake.configs] == [3]
    assert fake.overrides == [["steps=3", "interleave=shuffle"]]


@pytest.mark.parametrize("code", [0, 1, 2, 75])
def test_the_exit_code_is_the_run_s(faked: Faked, code: int) -> None:
    faked(lambda config: code)
    assert main(["train"]) == code


def test_a_sweep_s_runs_have_directories_of_their_own_in_the_sweep_s(faked: Faked) -> None:
    fake = faked(done)
    assert main(["train", "seed=0,1", "-m", "interleave=shuffle,stride_jitter", "hydra.sweep.dir=s"]) == 0
    typed = [[f"seed={seed}", f"interleave={order}"] for seed in (0, 1) for order in ("shuffle", "stride_jitter")]
    assert {config.run_dir for config in fake.configs} == {
        f"s/{index}-{identity(compose(overrides))}" for index, overrides in enumerate(typed)
    }
    assert [identity(config) for config in fake.configs] == [identity(compose(own)) for own in fake.overrides]


def test_a_sweep_file_runs_without_m_and_the_command_line_beats_it(faked: Faked) -> None:
    fake = faked(done)
    assert main(["train", "sweeps=interleaving", "seed=5,6"]) == 0
    assert [config.seed for config in fake.configs] == [5, 5, 5, 6, 6, 6]
    for of_seed in (fake.configs[:3], fake.configs[3:]):
        assert {type(config.interleave).__name__ for config in of_seed} == {"Shuffle", "DiversityFirst", "StrideJitter"}
    assert {Path(config.run_dir or "").parent for config in fake.configs} == {Path("runs/interleaving")}


def test_a_sweep_without_a_name_is_called_by_its_time(faked: Faked) -> None:
    fake = faked(done)
    main(["train", "-m", "seed=0,1"])
    (sweep_dir,) = {Path(config.run_dir or "").parent for config in fake.configs}
    assert sweep_dir.parent == Path("runs")
    assert sweep_dir.name.startswith("20")


def test_no_directory_can_be_named_for_all_runs_of_a_sweep(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    fake = faked(done)
    assert main(["train", "-m", "seed=0,1", "run_dir=x"]) == 2
    assert "say hydra.sweep.dir=x" in capsys.readouterr().err
    assert fake.configs == []


def test_one_failure_does_not_lose_the_rest_of_a_sweep(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(config: Config) -> int:
        if config.seed == 0:
            raise RuntimeError("out of memory")
        if config.seed == 1:
            raise ConfigError("data.path must exist, got x")
        return 0

    fake = faked(answer)
    assert main(["train", "-m", "seed=0,1,2"]) == 1
    assert [config.seed for config in fake.configs] == [0, 1, 2]
    said = capsys.readouterr().err
    assert "RuntimeError: out of memory" in said
    assert "dflash-exp: data.path must exist, got x" in said


def test_a_stop_on_request_stops_the_sweep(faked: Faked) -> None:
    fake = faked(lambda config: 75 if config.seed == 1 else 0)
    assert main(["train", "-m", "seed=0,1,2"]) == 75
    assert [config.seed for config in fake.configs] == [0, 1]


def test_a_stop_asked_for_when_a_job_has_taken_its_last_step_lets_no_other_begin(faked: Faked) -> None:
    def answer(config: Config) -> int:
        os.kill(os.getpid(), signal.SIGUSR2)
        return 0

    fake = faked(answer)
    assert main(["train", "-m", "seed=0,1,2"]) == 75
    assert [config.seed for config in fake.configs] == [0]
    assert main(["train", "seed=0"]) == 0, "a run that is finished has nothing to go on with"


def test_a_sweep_s_runs_are_a_group_of_its_name_in_wandb(faked: Faked) -> None:
    fake = faked(done)
    main(["train", "sweeps=interleaving"])
    main(["train", "-m", "seed=0,1", "telemetry.wandb.group=mine"])
    main(["train"])
    assert [config.telemetry.wandb.group for config in fake.configs] == ["interleaving"] * 9 + ["mine", "mine", None]


def test_a_crash_of_a_single_run_keeps_its_traceback(faked: Faked) -> None:
    def answer(config: Config) -> int:
        raise RuntimeError("out of memory")

    faked(answer)
    with pytest.raises(RuntimeError, match="out of memory"):
        main(["train"])


def test_plans_of_a_sweep_do_not_overwrite_one_another(faked: Faked) -> None:
    fake = faked(done)
    assert main(["plan", "-m", "seed=0,1", "plan.out=here"]) == 0
    assert [config.plan.out for config in fake.configs] == [
        f"here/{index}-{identity(config)}" for index, config in enumerate(fake.configs)
    ]
    assert main(["plan", "plan.out=here"]) == 0
    assert fake.configs[-1].plan.out == "here"


def test_evaluate_hands_on_what_was_said_and_leaves_the_rest_to_the_run(faked: Faked) -> None:
    fake = faked(done)
    Path("run").mkdir()
    Path("run/config.yaml").write_text(to_yaml(compose(["seed=7"])))
    Path("drafter").mkdir()
    for path in ("run", "drafter"):
        assert main(["evaluate", path, "--limit", "3", "--temperature", "0.5"]) == 0
    options = EvaluateOptions(None, None, None, 0.5, 3, None)
    assert fake.evaluated == [(Path("run"), compose(["seed=7"]), options), (Path("drafter"), None, options)]


def test_evaluate_takes_a_target_by_path_or_as_it_is_configured(faked: Faked) -> None:
    fake = faked(done)
    Path("drafter").mkdir()
    for target in ("qwen3_4b", "some/target", "embedded"):
        assert main(["evaluate", "drafter", "--target", target]) == 0
    Path("qwen3_4b").mkdir()
    assert main(["evaluate", "drafter", "--target", "qwen3_4b"]) == 0
    configured, *others = [options.target for _, _, options in fake.evaluated]
    assert configured == compose(["target=qwen3_4b"]).target == TargetConfig("Qwen/Qwen3-4B", TargetDtype.BFLOAT16)
    assert others == [TargetConfig(path, TargetDtype.FLOAT32) for path in ("some/target", "embedded", "qwen3_4b")]


def test_evaluate_needs_a_directory(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    fake = faked(done)
    assert main(["evaluate", "nowhere"]) == 2
    assert "PATH must be a run's directory or a drafter's, got nowhere" in capsys.readouterr().err
    assert fake.evaluated == []


@pytest.mark.parametrize(
    "arguments",
    [["train"], ["plan", "-m", "seed=0,1"], ["train", "--cfg", "job"], ["plan"], ["train", "-m", "seed=0,x"]],
)
def test_composing_writes_nothing(faked: Faked, arguments: list[str]) -> None:
    faked(done)
    main(arguments)
    assert list(Path.cwd().iterdir()) == []


def test_cfg_job_prints_every_key_and_runs_nothing(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    fake = faked(done)
    assert main(["train", "--cfg", "job", "interleave=shuffle"]) == 0
    assert "_target_: dflash_exp.plan.interleave.Shuffle" in capsys.readouterr().out
    assert fake.configs == []


def test_every_verb_has_a_file_of_its_name_and_an_entry_in_the_table() -> None:
    folder = Path(cli.__file__).parent / "verbs"
    files = [path.stem for path in folder.glob("*.py") if "\nVERB = " in path.read_text("utf-8")]
    assert sorted(files) == sorted(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help_with_two_copyable_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out.count(f"\n  dflash-exp {verb}") == 2


def test_the_shell_is_told_verbs_and_then_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_LINE", "dflash-exp tr")
    monkeypatch.setenv("COMP_POINT", "13")
    assert main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.split() == list(VERBS)
    monkeypatch.setenv("COMP_LINE", "dflash-exp train interleave=shu")
    assert main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.split() == ["interleave=shuffle"]
