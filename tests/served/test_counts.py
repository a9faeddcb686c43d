"""Counters and details of servers are read as what they are."""

import pytest

from dflash_exp.served.counts import Counts, VllmTotals, of_sglang, of_vllm, total
from dflash_exp.served.prometheus import Sample, samples
from tests.served.fake_engines import Engine


def test_samples_have_a_name_labels_and_a_value_whatever_else_the_line_holds() -> None:
    text = '# TYPE a counter\na 1\nb{x="1,}",y="\\"q\\" z"} 2.5e+02 1700000000000\n\nno sample\nc NaN\nd{} x\n'
    a, b, c = samples(text)
    assert (a, b) == (Sample("a", {}, 1.0), Sample("b", {"x": "1,}", "y": '\\"q\\" z'}, 250.0))
    assert c.name == "c" and c.value != c.value


def test_vllm_s_counters_are_added_up_over_its_engines() -> None:
    assert of_vllm(Engine("vllm", ()).metrics()) == VllmTotals(Counts(107, (35, 34, 33)), 269)


def test_without_counters_of_drafts_there_is_no_speculation() -> None:
    with pytest.raises(ValueError, match=r"has no vllm:spec_decode_num_drafts_total; start it with --speculative-conf"):
        of_vllm('vllm:generation_tokens_total{engine="0"} 5.0\n')


def test_sglang_says_how_many_steps_accepted_how_much() -> None:
    answer = {"sglext": {"spec_tokens_details": {"spec_correct_drafts_histogram": [4, 0, 2, 1], "spec_verify_ct": 7}}}
    assert of_sglang(answer) == Counts(7, (3, 3, 1))


@pytest.mark.parametrize("answer", [{}, {"sglext": None}, {"sglext": {"spec_tokens_details": None}}])
def test_an_answer_without_details_is_refused(answer: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no sglext\.spec_tokens_details"):
        of_sglang(answer)


def test_answers_that_never_reached_a_slot_add_nothing_there() -> None:
    assert total([Counts(3, (2, 1)), Counts(2, ()), Counts(1, (1, 1, 1))]) == Counts(6, (3, 2, 1))
    assert total([]) == Counts(0, ())


@pytest.mark.parametrize("after", [Counts(3, (1, 1)), Counts(12, (3, 1)), Counts(20, (8, 4, 1))])
def test_counters_of_a_server_that_was_started_anew_are_not_taken_for_the_difference(after: Counts) -> None:
    with pytest.raises(ValueError, match="started anew"):
        _ = after - Counts(10, (5, 2))
