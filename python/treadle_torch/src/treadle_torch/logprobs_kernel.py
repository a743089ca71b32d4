"""Log-probabilities, entropies and their slopes by one kernel each (Triton), which read a token's logits once.

By PyTorch's operations, which the kernels' results equal within rounding, each byte of the logits is moved some ten times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Logits that a program has at once.
BLOCK = 4096
# Below any logit, and a number: nothing is multiplied by infinity.
LOWEST = -1e38


def measure(
    logits: torch.Tensor, tokens: torch.Tensor, temperatures: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of `[tokens, vocabulary]`: log-probability of each token, entropy, and logarithm of the normaliser, in float32."""
    count, vocabulary = logits.shape
    logprobs, entropies, normalisers = (torch.empty(count, dtype=torch.float32, device=logits.device) for _ in range(3))
    if count > 0:
        _measure[(count,)](
            logits, tokens, logits if temperatures is None else temperatures, logprobs, entropies, normalisers,
            vocabulary, logits.stride(0), temperatures is not None, LOWEST, _block(vocabulary), num_warps=8,
        )  # fmt: skip
    return logprobs, entropies, normalisers


def slopes_(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    temperatures: torch.Tensor | None,
    entropies: torch.Tensor,
    normalisers: torch.Tensor,
    of_logprobs: torch.Tensor | None,
    of_entropies: torch.Tensor | None,
) -> torch.Tensor:
    """In the logits' place, the slope along each of what the slopes along log-probabilities and entropies say."""
    count, vocabulary = logits.shape
    if count > 0:
        _slopes[(count,)](
            logits, tokens, *(logits if each is None else each for each in (temperatures, of_logprobs, of_entropies)), entropies, normalisers,
            vocabulary, logits.stride(0), temperatures is not None, of_logprobs is not None, of_entropies is not None,
            _block(vocabulary), num_warps=8,
        )  # fmt: skip
    return logits


def _block(vocabulary: int) -> int:
    return min(BLOCK, triton.next_power_of_2(vocabulary))


@triton.jit
def _measure(  # type: ignore[no-untyped-def]
    logits, tokens, temperatures, logprobs, entropies, normalisers,
    vocabulary, stride, IS_TEMPERED: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0)
    scale = 1.0
    if IS_TEMPERED:
        scale = 1.0 / tl.load(temperatures + row)
    own = logits + row.to(tl.int64) * stride
    # Largest so far, sum of e to what is above it, and the same times what is above it.
    top = tl.full((), LOWEST, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    surplus = tl.full((), 0.0, tl.float32)
    for start in range(0, vocabulary, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = tl.load(own + place, mask=place < vocabulary, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(top, tl.max(value, 0))
        shrunk = tl.exp(top - higher)
        above = value - higher
        weight = tl.exp(above)
        surplus = shrunk * (surplus + total * (top - higher)) + tl.sum(tl.where(weight > 0, weight * above, 0.0), 0)
        total = shrunk * total + tl.sum(weight, 0)
        top = higher
    token = tl.load(tokens + row)
    chosen = tl.load(own + token).to(tl.float32) * scale
    tl.store(logprobs + row, chosen - top - tl.log(total))
    tl.store(entropies + row, tl.log(total) - surplus / total)
    tl.store(normalisers + row, top + tl.log(total))


@triton.jit
def _slopes(  # type: ignore[no-untyped-def]
    logits, tokens, temperatures, of_logprobs, of_entropies, entropies, normalisers,
    vocabulary, stride, IS_TEMPERED: tl.constexpr, HAS_LOGPROBS: tl.constexpr, HAS_ENTROPIES: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0)
    scale = 1.0
    if IS_TEMPERED:
        scale = 1.0 / tl.load(temperatures + row)
    own = logits + row.to(tl.int64) * stride
    token = tl.load(tokens + row)
    normaliser = tl.load(normalisers + row)
    for start in range(0, vocabulary, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < vocabulary
        value = tl.load(own + place, mask=inside, other=-float("inf")).to(tl.float32) * scale
        logprob = value - normaliser
        weight = tl.exp(logprob)
        slope = tl.zeros((BLOCK,), tl.float32)
        if HAS_LOGPROBS:
            slope += tl.load(of_logprobs + row) * (tl.where(place == token, 1.0, 0.0) - weight)
        if HAS_ENTROPIES:
            surprise = logprob + tl.load(entropies + row)
            slope -= tl.load(of_entropies + row) * tl.where(weight > 0, weight * surprise, 0.0)
        tl.store(own + place, (slope * scale).to(logits.dtype.element_ty), mask=inside)
