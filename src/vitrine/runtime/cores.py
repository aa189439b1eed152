"""How many cores this process may compute on. No torch."""

import os


def available_cores() -> int:
    """Count the cores that this process may use: those it is bound to, where the system tells, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
