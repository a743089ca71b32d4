"""Seconds of work that a device may still be doing when its call returns, and its memory between measurements."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch


def seconds(act: Callable[[], object], times: int = 1) -> float:
    """Of the fastest of so many."""
    best = float("inf")
    for _ in range(times):
        _settle()
        began = time.perf_counter()
        act()
        _settle()
        best = min(best, time.perf_counter() - began)
    return best


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def clear() -> None:
    """What nobody holds any more goes back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
