"""CRC-32 of many tensors where they are, as zlib computes it.

A CRC is linear, so parts are computed side by side and combined: that of each row of 256 bytes, from an initial value of 0, and of
the rows of a tensor by twos. A tensor ends where its last row does. What is before it in its first row is 0, which such a CRC of
no initial value does not see.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

try:
    from isal.isal_zlib import crc32  # seven times as fast as zlib's of most systems
except ImportError:
    from zlib import crc32

__all__ = ["checksums", "combined", "crc32", "num_rows"]

ROW_BYTES = 256
WORD_BYTES = 4
# Rows of a tensor, all but its first ones, whose CRCs the device combines.
SPAN = 2**10
# At once, which bounds what the intermediate values take.
ROWS = 2**22
ONES = 0xFFFF_FFFF
POLYNOMIAL = 0xEDB8_8320

# A linear map of 32 bits: the images of 1, 2, 4 and so on.
Linear = tuple[int, ...]


def num_rows(num_bytes: int) -> int:
    return -(-num_bytes // ROW_BYTES)


def checksums(rows: torch.Tensor, sizes: Sequence[int]) -> list[int]:
    """Of tensors of so many bytes; `rows` has their bytes, `[sum of num_rows, 256]` uint8, in a row each or more."""
    words = rows.view(torch.int32)
    raw = torch.cat([_of_rows(part) for part in words.split(ROWS)]) if len(words) > 0 else words.new_empty(0)
    counts = [num_rows(size) for size in sizes]
    spans = [-(-count // SPAN) for count in counts]
    # All tensors at once, each with nothing before its first row, until few numbers of it are left, which the host combines.
    parts = raw.new_zeros(sum(spans) * SPAN)
    shifts, before = [], 0
    for count, span in zip(counts, spans, strict=True):
        before += span * SPAN - count
        shifts.append(before)
    places = torch.tensor(shifts, device=raw.device).repeat_interleave(torch.tensor(counts, device=raw.device), output_size=len(raw))
    parts[places.add_(torch.arange(len(raw), device=raw.device))] = raw
    parts = _halved(parts, SPAN.bit_length() - 1, ROW_BYTES).cpu()
    found = [0] * len(sizes)
    groups: dict[int, list[tuple[int, torch.Tensor]]] = defaultdict(list)
    for index, part in enumerate(parts.split(spans)):
        groups[(max(1, len(part)) - 1).bit_length()].append((index, part))
    for levels, members in groups.items():
        one_each = parts.new_zeros(len(members), 2**levels)
        for place, (_, part) in enumerate(members):
            one_each[place, 2**levels - len(part) :] = part
        for (index, _), value in zip(members, _halved(one_each, levels, SPAN * ROW_BYTES)[:, 0].tolist(), strict=True):
            found[index] = (value & ONES) ^ _image(_zeros(sizes[index]), ONES) ^ ONES
    return found


def _halved(parts: torch.Tensor, times: int, num_bytes: int) -> torch.Tensor:
    """CRCs of so many bytes each, side by side in the last dimension, combined by twos."""
    for time in range(times):
        parts = _apply(_zeros(num_bytes << time), parts[..., 0::2]) ^ parts[..., 1::2]
    return parts


def combined(parts: Sequence[int], sizes: Sequence[int]) -> int:
    """Of bytes whose parts, of these sizes, have these checksums."""
    whole = 0
    for part, size in zip(parts, sizes, strict=True):
        whole = _image(_zeros(size), whole) ^ part
    return whole


def _of_rows(words: torch.Tensor) -> torch.Tensor:
    return _kernel()(words) if words.is_cuda else _by_words(words)


@functools.cache
def _kernel() -> Callable[[torch.Tensor], torch.Tensor]:
    """Of CUDA devices. Triton compiles it, for which it needs a C compiler; where it fails, words are taken one by one."""
    try:
        from .crc_kernel import of_rows

        words = torch.arange(640, dtype=torch.int32, device="cuda").view(10, 64) * 0x9E3779B
        if torch.equal(of_rows(words, POLYNOMIAL), _by_words(words)):
            return lambda words: of_rows(words, POLYNOMIAL)
        print("checksums: the kernel computes others than it should, and is not used", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 whatever it lacks
        print(f"checksums are slower on the device, where Triton compiles no kernel: {error}", file=sys.stderr)
    return _by_words


def _by_words(words: torch.Tensor) -> torch.Tensor:
    crc = torch.zeros(len(words), dtype=torch.int32, device=words.device)
    for word in words.t().contiguous():
        crc = _apply(_zeros(WORD_BYTES), crc ^ word)
    return crc


def _apply(linear: Linear, values: torch.Tensor) -> torch.Tensor:
    """To int32."""
    first, *others = _tables(linear, values.device)
    result = first[values & 255]
    for place, table in enumerate(others, 1):
        result ^= table[(values >> 8 * place) & 255]
    return result


@functools.cache
def _tables(linear: Linear, device: torch.device) -> tuple[torch.Tensor, ...]:
    """The images of each byte, at each of four places."""
    images = [[_image(linear, byte << 8 * place) for byte in range(256)] for place in range(4)]
    # As signed numbers of 32 bits.
    signed = torch.tensor(images).to(torch.int32)
    return tuple(signed.to(device))


@functools.cache
def _zeros(num_bytes: int) -> Linear:
    """What so many bytes of 0 make of a CRC."""
    if num_bytes == 0:
        return tuple(1 << bit for bit in range(32))
    if num_bytes == 1:
        return tuple(functools.reduce(lambda crc, _: (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0), range(8), 1 << bit) for bit in range(32))
    half, rest = _zeros(num_bytes // 2), _zeros(num_bytes % 2)
    return tuple(_image(rest, _image(half, image)) for image in half)


def _image(linear: Linear, value: int) -> int:
    result = 0
    for image in linear:
        if value & 1:
            result ^= image
        value >>= 1
    return result
