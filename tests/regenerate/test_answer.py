"""What is done about an answer, and how long is waited for the next."""

from datetime import UTC, datetime
from random import Random

import pytest

from dflash_exp.regenerate.answer import (
    LONGEST_RETRY_AFTER_S,
    Passing,
    Refused,
    RefusesAll,
    body_of,
    reply_of,
    retry_after_s,
    wait_s,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "wanted_s"),
    [
        (None, 0), ("7", 7), ("86400", LONGEST_RETRY_AFTER_S), ("soon", 0), ("-3", 0),
        ("Fri, 02 Jan 2026 03:04:35 GMT", 30), ("Fri, 02 Jan 2026 03:04:00 GMT", 0),
        ("Fri, 02 Jan 2026 03:04:35 -0000", 0),
    ],
)  # fmt: skip
def test_a_retry_after_is_seconds_or_a_date_and_has_an_end(header: str | None, wanted_s: float) -> None:
    assert retry_after_s(header, NOW) == wanted_s


def test_waits_double_up_to_a_minute_and_are_never_shorter_than_the_server_asked_for() -> None:
    for attempt, most_s in enumerate([2, 4, 8, 16, 32, 60, 60]):
        waits_s = [wait_s(attempt, 2.0, 0.0, Random(seed)) for seed in range(50)]
        assert most_s / 2 <= min(waits_s) < max(waits_s) <= most_s
    assert wait_s(0, 2.0, 45.0, Random(0)) == 45


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, Passing), (408, Passing), (500, Passing), (503, Passing), (400, Refused), (302, Refused), (401, RefusesAll),
     (404, RefusesAll)],
)  # fmt: skip
def test_a_status_says_whether_the_moment_the_row_or_the_command_is_at_fault(
    status: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=f"status {status}: because of it") as raised:
        body_of(status, {"retry-after": "7"}, b"because\n of it", NOW)
    if isinstance(raised.value, Passing):
        assert raised.value.retry_after_s == 7


@pytest.mark.parametrize(
    "message", [{}, {"content": 3}, {"content": "\ud800"}, {"content": "x", "reasoning": [1]}, None]
)
def test_an_answer_without_words_is_no_reply(message: object) -> None:
    with pytest.raises(Passing, match="without choices"):
        reply_of({"choices": [{"message": message}]})
