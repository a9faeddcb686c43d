"""The training line: prefetch, target forward, drafter step."""
