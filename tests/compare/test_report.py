"""What is said of a sweep: the verdict, when there is none, and what must be said first."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dflash_exp.compare.report import Asked, Report, report_of
from dflash_exp.comparison import Options, question_of
from dflash_exp.gathered import gather
from tests.compare.sweeps import ANALYSIS, Job, noisy, sweep_of, write_jobs

SHUFFLE, STRIDE, DIVERSE = [3.00, 3.10, 2.95, 3.05], [2.90, 3.02, 2.87, 2.96], [3.20, 3.33, 3.10, 3.25]
ORDERS = {"shuffle": SHUFFLE, "stride_jitter": STRIDE, "diversity_first": DIVERSE}
FOUR = {**ANALYSIS, "seeds": 4}


def report(sweep_dir: Path, **options: str | None) -> Report:
    gathered = gather(sweep_dir)
    asked = Options(options.get("metric"), options.get("baseline"), None)
    question, frozen = question_of([gathered], asked)
    return report_of(gathered.runs, question, Asked("test", frozen, ["dflash-exp compare test"]))


def jobs(arms: Sequence[str] = ("shuffle", "stride_jitter"), n_seeds: int = 3, **more: Any) -> list[Job]:
    return [Job(arm, seed, 3.0 + 0.01 * seed, **more) for arm in arms for seed in range(n_seeds)]


def test_the_primary_contrast_is_a_paired_t_by_seed(tmp_path: Path) -> None:
    found = report(sweep_of(tmp_path, ORDERS, FOUR))
    oracle: Any = stats.ttest_rel(STRIDE, SHUFFLE)
    first = found.primary
    assert first is not None and found.look == "final"
    assert (first.a, first.b, first.adjustment) == ("interleave=stride_jitter", "interleave=shuffle", "none")
    assert first.difference == pytest.approx(-0.0875) and first.p == pytest.approx(oracle.pvalue)
    assert first.interval == pytest.approx(tuple(oracle.confidence_interval()))
    assert first.margin == pytest.approx(0.01 * np.mean(SHUFFLE)) and first.verdict == "better"


def test_every_arm_is_held_against_the_baseline_jointly(tmp_path: Path) -> None:
    found = report(sweep_of(tmp_path, ORDERS, FOUR))
    assert [(each.a, each.verdict) for each in found.family] == [
        ("interleave=stride_jitter", "better"),
        ("interleave=diversity_first", "worse"),
    ]
    alone: Any = stats.ttest_rel(STRIDE, SHUFFLE)
    assert found.family[0].adjustment == "dunnett" and found.family[0].p != pytest.approx(alone.pvalue)
    assert [each.adjustment for each in found.contrasts] == ["none", "dunnett", "dunnett"]


def test_two_arms_have_one_contrast(tmp_path: Path) -> None:
    found = report(sweep_of(tmp_path, {"shuffle": SHUFFLE, "stride_jitter": STRIDE}, FOUR))
    assert [each.adjustment for each in found.contrasts] == ["none"]


def test_compare_json_has_the_fields_that_it_promises(tmp_path: Path) -> None:
    document = report(sweep_of(tmp_path, ORDERS, FOUR)).document
    assert list(document) == ["analysis", "arms", "contrasts", "noise_floor", "placebo", "hashes", "warnings"]
    assert document["analysis"] == FOUR and document["warnings"] == []
    assert all(list(arm) == ["setting", "n", "mean", "sd", "interval"] for arm in document["arms"])
    names = ["a", "b", "metric", "difference", "interval", "p", "adjustment", "verdict", "n_for_margin"]
    assert all(list(contrast) == names for contrast in document["contrasts"])
    assert document["arms"][0]["mean"] == pytest.approx(np.mean(SHUFFLE))
    assert document["placebo"] == {"swaps": 16, "share_as_large": 2 / 16}
    assert document["hashes"]["known"] and document["hashes"]["orders_differ"]


def test_arms_that_share_no_seed_are_not_called_equal(tmp_path: Path) -> None:
    found = report(write_jobs(tmp_path, [Job("shuffle", 0, 3.0), Job("stride_jitter", 1, 3.0)]))
    assert found.document["hashes"]["seeds"] == 0
    assert found.sentences[1] == (
        "Equal", "nothing to say, since no seed has runs of two arms; they differ in interleave."
    )  # fmt: skip


def test_the_noise_floor_is_what_arm_and_seed_leave_unexplained(tmp_path: Path) -> None:
    losses = {"shuffle": noisy(3, 0.02, 40, 1), "stride_jitter": noisy(3, 0.02, 40, 2)}
    floor = report(sweep_of(tmp_path, losses, {**FOUR, "seeds": 40})).document["noise_floor"]
    assert floor["sd_of_a_run"] == pytest.approx(0.02, rel=0.3) and floor["beyond_its_seed"]
    assert floor["detectable"] == pytest.approx(2.87 * floor["sd_of_a_run"] * (2 / 40) ** 0.5, rel=0.02)


def test_an_unfinished_sweep_gives_a_look_and_no_verdict(tmp_path: Path) -> None:
    half = [replace(job, status=None) if job.arm == "stride_jitter" and job.seed == 2 else job for job in jobs()]
    found = report(write_jobs(tmp_path, half))
    assert found.look == "interim look" and found.primary is not None
    assert found.primary.verdict is None and found.primary.interval is not None and len(found.primary.by_seed) == 2
    assert found.sentences[2][0] == "Interim look" and "2 of 3 seeds" in found.sentences[2][1]
    assert any(line.startswith("seeds are missing: 3 finished runs an arm were planned") for line in found.cautions)
    assert any(line.startswith("stopped before the end: 5-test-stride_jitter-s2") for line in found.cautions)


def test_with_fewer_than_three_seeds_there_is_no_p(tmp_path: Path) -> None:
    two = {"shuffle": [3.0, 3.1], "stride_jitter": [2.0, 2.1001]}
    found = report(sweep_of(tmp_path, two, {**ANALYSIS, "seeds": 2})).primary
    assert found is not None and found.p is None and found.verdict == "undecided" and found.interval is not None


def test_what_was_not_asked_beforehand_is_exploratory(tmp_path: Path) -> None:
    sweep_dir = sweep_of(tmp_path, ORDERS, FOUR)
    other = report(sweep_dir, baseline="interleave=diversity_first")
    assert other.look == "exploratory" and other.primary is None and other.sentences[2][0] == "Exploratory"
    assert [each.b for each in other.contrasts] == ["interleave=diversity_first"] * 2
    metric = report(sweep_dir, metric="tau_pooled")
    assert metric.look == "exploratory" and metric.judged.measure.name == "tau_pooled"
    assert report(sweep_dir, metric="probe/loss", baseline="interleave=shuffle").look == "final"


def test_more_tau_is_better_and_more_loss_is_worse(tmp_path: Path) -> None:
    taus = {"shuffle": 2.0, "stride_jitter": 2.5}
    made = [replace(job, tau=taus[job.arm] + 0.01 * job.seed) for job in jobs()]
    found = report(write_jobs(tmp_path, made, {**ANALYSIS, "primary_metric": "tau_pooled"}))
    assert found.primary is not None and found.primary.verdict == "better"


def test_a_sweep_without_a_baseline_describes_how_far_its_arms_spread(tmp_path: Path) -> None:
    nothing = {**ANALYSIS, "baseline": None, "contrast": None, "differs_in": "setting"}
    draws = [
        Job("shuffle", 0, 3 + 0.01 * draw, config={f"seeds.{name}": draw}, overrides=("interleave=shuffle",))
        for name in ("order", "init")
        for draw in (1, 2, 3)
    ]
    write_jobs(tmp_path / "one", draws[:3], nothing)
    write_jobs(tmp_path / "two", draws[3:], nothing)
    gathered = [gather(tmp_path / name) for name in ("one", "two")]
    question, frozen = question_of(gathered, Options(None, None, None))
    runs = [run for one in gathered for run in one.runs]
    found = report_of(runs, question, Asked("test", frozen, ["dflash-exp compare"]))
    assert [arm.label for arm in found.arms] == ["seeds.order", "seeds.init"]
    assert found.contrasts == [] and found.document["noise_floor"]["sd_of_a_run"] == pytest.approx(0.01)
    assert "no arm is the baseline" in found.sentences[2][1]


def test_an_arm_that_never_gets_there_is_said(tmp_path: Path) -> None:
    found = report(sweep_of(tmp_path, {"shuffle": SHUFFLE, "stride_jitter": [2.9, 3.2, 2.9, 3.1]}, FOUR))
    row = found.row("tokens_to_baseline")
    assert row is not None
    stride = row.values.of(found.arms[1])
    assert np.isnan(stride).tolist() == [False, True, False, True]
    assert (stride[[0, 2]] < 40_000).all() and row.values.of(found.arms[0]).tolist() == [40_000.0] * 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"result": {"init_sha256": "other"}},
            "more than the order differs: arms do not share their first weights at seed 0",
        ),
        ({"result": {"anchors_sha256": "other"}}, "more than the order differs: arms do not share their anchors"),
        (
            {"result": {"trained_order_sha256": "o0shuffle"}},
            "the order does not differ: two arms trained in the same order",
        ),
        ({"result": {"tokens": 39_000}}, "budgets are unequal: 39,000 to 40,000 tokens trained at seed 0"),
        ({"result": {"restarts": 2}}, "began anew from a checkpoint: 3-test-stride_jitter-s0 (2 times)"),
        (
            {"plan": {"lr_share": [1.0, 1.05, 1.0, 1.0]}},
            "learning rates are unequal: the share that bucket 1 gets differs by 5.0 %",
        ),
        ({"status": "failed"}, "3-test-stride_jitter-s0 failed: RuntimeError: out of memory"),
        ({"revision": "b" * 40}, "runs are of different code: revisions aaaaaaaaaa, bbbbbbbbbb"),
    ],
)
def test_what_makes_a_comparison_doubtful_is_said_first(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    made = jobs()
    odd = next(at for at, job in enumerate(made) if job.arm == "stride_jitter")
    made[odd] = replace(made[odd], **change)
    assert any(line.startswith(said) for line in report(write_jobs(tmp_path, made)).cautions)


def test_a_sound_sweep_is_not_warned_of(tmp_path: Path) -> None:
    close = jobs(plan={"lr_share": [1.0, 1.01, 1.0, 1.0]})
    assert report(write_jobs(tmp_path / "sound", close)).cautions == []
    loose = {**ANALYSIS, "differs_in": "setting"}
    odd = [replace(job, result={"init_sha256": job.arm}) for job in jobs()]
    assert report(write_jobs(tmp_path / "settings", odd, loose)).cautions == []


def test_seeds_that_were_added_after_a_look_are_said(tmp_path: Path) -> None:
    found = report(write_jobs(tmp_path, jobs(n_seeds=5)))
    assert any(line.startswith("5 seeds are there and 3 were planned") for line in found.cautions)


def test_the_five_sentences_say_what_is_known(tmp_path: Path) -> None:
    leads, said = zip(*report(sweep_of(tmp_path, ORDERS, FOUR)).sentences, strict=True)
    assert leads == ("Compared", "Equal", "Verdict", "Decoding", "Cost")
    assert said[0].startswith(
        "3 settings (interleave=shuffle, interleave=stride_jitter and interleave=diversity_first)"
    )
    assert said[1].endswith("they differ in order alone.")
    assert (
        "is better than interleave=shuffle in probe loss, over 4 seeds: the difference is −0.0875 (−2.89 %)" in said[2]
    )
    assert "(1 % of the baseline) counts as equal" in said[2]
    assert "2.000 tokens a verify step" in said[3] and "speed-up over plain decoding is 1.000" in said[3]
    assert said[4].startswith("0.12 device-hours of training in 12 runs")


def test_the_sentence_on_decoding_holds_runs_of_the_same_seeds_against_one_another(tmp_path: Path) -> None:
    made = [replace(job, tau=2.0 + 0.1 * job.seed + 0.5 * (job.arm == "stride_jitter")) for job in jobs()]
    made = [job for job in made if (job.arm, job.seed) != ("stride_jitter", 2)]
    said = report(write_jobs(tmp_path, made)).sentences[3][1]
    assert "difference +0.500 over 2 seeds" in said
