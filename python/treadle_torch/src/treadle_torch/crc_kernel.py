"""The CRCs of rows by one kernel (Triton), which reads each byte once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 128


def of_rows(words: torch.Tensor, polynomial: int) -> torch.Tensor:
    """int32 `[rows, words]` on a CUDA device: int32 `[rows]`, each from an initial value of 0."""
    words = words.contiguous()
    found = torch.empty(len(words), dtype=torch.int32, device=words.device)
    if len(words) > 0:
        _rows[(triton.cdiv(len(words), BLOCK),)](words, found, len(words), polynomial, words.shape[1], BLOCK)
    return found


@triton.jit
def _rows(words, found, count, POLYNOMIAL: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    polynomial = tl.full((BLOCK,), POLYNOMIAL, tl.uint32)
    crc = tl.zeros((BLOCK,), tl.uint32)
    for word in range(WORDS):
        crc ^= tl.load(words + row * WORDS + word, mask=row < count, other=0).to(tl.uint32, bitcast=True)
        for _ in tl.static_range(32):
            crc = tl.where((crc & 1) != 0, (crc >> 1) ^ polynomial, crc >> 1)
    tl.store(found + row, crc.to(tl.int32, bitcast=True), mask=row < count)
