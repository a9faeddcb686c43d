"""What is left out of the conversations, so that a loop is as likely in every length bucket."""

import numpy as np

from dflash_exp.embedded.pack import N_BUCKETS, Sampled, evened, length_buckets


def rows() -> list[Sampled]:
    """Six hundred, of 10 to 609 tokens; short ones loop often, long ones never."""
    return [
        Sampled("a.py", "train", [9] * 4, [9] * (6 + i), "loop" if i % 7 < 4 - i // 150 else "eos", [9])
        for i in range(600)
    ]


def shares(found: list[Sampled]) -> list[float]:
    _, bucket = length_buckets(np.array([row.n_tokens for row in found]))
    return [
        float(np.mean([row.ending == "loop" for row, k in zip(found, bucket, strict=True) if k == b])) for b in range(6)
    ]


def test_no_bucket_keeps_more_loops_than_the_share_and_nothing_else_is_left_out() -> None:
    before, after = rows(), evened(rows(), 0.2, np.random.default_rng(0))
    assert max(shares(before)) > 0.5
    assert max(shares(after)) < 0.23  # the edges move a little when rows go
    assert [row for row in after if row.ending != "loop"] == [row for row in before if row.ending != "loop"]
    assert N_BUCKETS == 6


def test_where_loops_are_few_all_stay() -> None:
    assert evened(rows(), 0.9, np.random.default_rng(0)) == rows()
