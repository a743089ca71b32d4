"""Seeded draws without state, the same as those of the embedded engine (packages/engines/src/random.ts)."""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def begun(*words: int) -> int:
    """Integers mixed into 32 bits, to which `uniform` adds the last (MurmurHash3's finaliser after each)."""
    value = 0x9E3779B9
    for word in words:
        value = _with(value, word & _MASK)
    return value


def uniform(streams: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """In (0, 1), float64: never 0. One draw for each stream that was begun, of that number."""
    value = _with(streams, numbers & _MASK)
    value = _times(value ^ (value >> 16), 0x85EBCA6B)
    value = _times(value ^ (value >> 13), 0xC2B2AE35)
    return ((value ^ (value >> 16)).double() + 0.5) / 4294967296


def _with(value, word):  # noqa: ANN001, ANN202 of Python's integers and of tensors of them
    value = _times(value ^ word, 0x85EBCA6B)
    value = _times(value ^ (value >> 13), 0xC2B2AE35)
    return ((value ^ (value >> 16)) + 0x6D2B79F5) & _MASK


def _times(value, factor: int):  # noqa: ANN001, ANN202
    """Modulo 2^32; in halves, so that no product leaves the 63 bits of a tensor's integers."""
    return ((value & 0xFFFF) * factor + (((value >> 16) * factor & 0xFFFF) << 16)) & _MASK
