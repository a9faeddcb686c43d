"""A device's peak by its name, and the share of it that was used."""

import pytest

from dflash_exp.peaks import mfu, peak_flop_per_s


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("cpu", None),
    ],
)
def test_a_device_is_known_by_a_part_of_its_name(name: str, expected: float | None) -> None:
    assert peak_flop_per_s(name) == expected


def test_an_mfu_is_the_work_of_a_second_over_the_peak_and_none_where_that_is_unknown() -> None:
    assert mfu(989e12, 2.0, "NVIDIA H200") == 0.5
    assert mfu(1e12, 2.0, "cpu") is None
