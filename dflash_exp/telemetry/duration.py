"""A time as people write it."""


def duration(seconds: float) -> str:
    """2h03m, 4m10s or 12s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
