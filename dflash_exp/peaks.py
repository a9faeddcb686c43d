"""What a device could compute at most, by its name: the denominator of an MFU.

In: a name as torch gives it. Out: FLOP/s of dense products in bf16, None for a device that is not listed.
"""

PEAK_BF16_FLOP_PER_S = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
}
"""From the makers' data sheets, without sparsity; the first name that a device's own contains."""


def peak_flop_per_s(device_name: str) -> float | None:
    """Of torch.cuda.get_device_name, e.g. `NVIDIA H100 80GB HBM3`; None where the table has no such device."""
    return next((peak for name, peak in PEAK_BF16_FLOP_PER_S.items() if name in device_name), None)


def mfu(flop: float, seconds: float, device_name: str) -> float | None:
    """The share of the device's peak that this much work in that time is; None where the peak is not known."""
    peak = peak_flop_per_s(device_name)
    return None if peak is None else flop / seconds / peak
