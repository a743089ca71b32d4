"""Log-probabilities of chosen tokens, in float32 whatever the model computes in, without all tokens' logits at once.

Logits of a chunk of tokens at a time are looked at in float32. Where they fit, those in the model's own numbers are kept for the
backward pass; elsewhere they are made again.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch

# Logits in float32 that exist at once, and in the model's numbers for the backward pass.
CHUNK_LOGITS = 2**27
KEPT_BYTES = 2**32
# In float32 for each thread: some arrays of so many stay in a processor's cache.
CACHED_LOGITS = 2**18
# Below every difference of logits that counts, and no sum or product of it with a slope is infinite.
LOWEST = -1e30


def chosen_logprobs(
    hidden: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor, temperatures: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each token and entropy of its distribution, `[tokens]` in float32.

    `hidden` is `[tokens, width]`, `head` `[vocabulary, width]`, `temperatures` `[tokens]`.
    """
    if not torch.is_grad_enabled():
        hidden, head = hidden.detach(), head.detach()  # else logits would be kept for a backward pass
    return _ChosenLogprobs.apply(hidden, head, tokens.contiguous(), None if temperatures is None else temperatures.contiguous())


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor, temperatures: torch.Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        vocabulary = head.shape[0]
        needs_gradient = any(ctx.needs_input_grad[:2])
        keeps = needs_gradient and hidden.shape[0] * vocabulary * hidden.element_size() <= KEPT_BYTES
        kept = hidden.new_empty(hidden.shape[0], vocabulary) if keeps else None
        logprobs, entropies, normalisers = (torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device) for _ in range(3))
        for part in _chunks(hidden.shape[0], vocabulary):
            logits = hidden[part] @ head.T if kept is None else torch.matmul(hidden[part], head.T, out=kept[part])
            measured = _way(logits).measure(logits, tokens[part], None if temperatures is None else temperatures[part])
            logprobs[part], entropies[part], normalisers[part] = measured
        ctx.save_for_backward(hidden, head, tokens, temperatures, entropies, normalisers)
        ctx.kept = kept
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor | None) -> Any:
        """`slopes`: along log-probabilities and entropies."""
        if all(each is None for each in slopes):
            return None, None, None, None
        hidden, head, tokens, temperatures, entropies, normalisers = ctx.saved_tensors
        slopes = tuple(None if each is None else each.contiguous() for each in slopes)
        kept, ctx.kept = ctx.kept, None
        to_hidden = torch.empty_like(hidden)
        # Summed over chunks in float32; over all tokens at once where their logits are there.
        to_head = torch.zeros(head.shape, dtype=torch.float32, device=head.device) if kept is None else None
        for part in _chunks(hidden.shape[0], head.shape[0]):
            logits = hidden[part] @ head.T if kept is None else kept[part]
            given = (None if each is None else each[part] for each in (tokens, temperatures, entropies, normalisers, *slopes))
            _way(logits).slopes_(logits, *given)
            if to_head is not None:
                torch.matmul(logits, head, out=to_hidden[part])
                to_head.add_(logits.T @ hidden[part])
        if kept is None:
            return to_hidden, to_head.to(head.dtype), None, None
        return kept @ head, kept.T @ hidden, None, None


def _chunks(count: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_LOGITS // vocabulary)
    size -= size % 64 if size > 64 else 0
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


class Plain:
    """By PyTorch's operations, as `logprobs_kernel` computes the same."""

    @staticmethod
    def measure(
        logits: torch.Tensor, tokens: torch.Tensor, temperatures: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        results = tuple(torch.empty(len(logits), dtype=torch.float32, device=logits.device) for _ in range(3))
        for part in _pieces(logits):
            measured = _measured(logits[part], tokens[part], None if temperatures is None else temperatures[part])
            for each, own in zip(results, measured, strict=True):
                each[part] = own
        return results

    @staticmethod
    def slopes_(
        logits: torch.Tensor,
        tokens: torch.Tensor,
        temperatures: torch.Tensor | None,
        entropies: torch.Tensor,
        normalisers: torch.Tensor,
        of_logprobs: torch.Tensor | None,
        of_entropies: torch.Tensor | None,
    ) -> torch.Tensor:
        """The normalisers are made again, with less error."""
        for part in _pieces(logits):
            given = (None if each is None else each[part] for each in (tokens, temperatures, entropies, of_logprobs, of_entropies))
            logits[part] = _slopes(logits[part], *given)
        return logits


def _pieces(logits: torch.Tensor) -> list[slice]:
    """Each is read some ten times: on a processor, from a cache."""
    count, vocabulary = logits.shape
    size = count if logits.is_cuda else CACHED_LOGITS * torch.get_num_threads() // vocabulary
    return [slice(first, first + max(1, size)) for first in range(0, count, max(1, size))]


def _measured(
    logits: torch.Tensor, tokens: torch.Tensor, temperatures: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    top, above, weights, total = _weighed(logits, temperatures)
    normaliser = total.log()
    surplus = weights.mul_(above).sum(-1)
    chosen = above.gather(1, tokens[:, None])[:, 0]
    chosen = torch.where(chosen > LOWEST, chosen, chosen * torch.inf)  # one that cannot be chosen; NaN stays NaN
    return chosen - normaliser, normaliser - surplus / total, top + normaliser


def _slopes(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    temperatures: torch.Tensor | None,
    entropies: torch.Tensor,
    of_logprobs: torch.Tensor | None,
    of_entropies: torch.Tensor | None,
) -> torch.Tensor:
    """One of the last two is there."""
    _, above, weights, total = _weighed(logits, temperatures)
    scale = -1 / total if temperatures is None else -1 / (total * temperatures)
    if of_entropies is None:
        slope = weights.mul_((scale * of_logprobs)[:, None])
    else:
        surprise = above.add_((entropies - total.log())[:, None]).mul_(of_entropies[:, None])
        weights.mul_(surprise if of_logprobs is None else surprise.add_(of_logprobs[:, None]))
        slope = weights.mul_(scale[:, None])
    if of_logprobs is not None:
        own = of_logprobs if temperatures is None else of_logprobs / temperatures
        slope.scatter_add_(1, tokens[:, None], own[:, None])
    return slope


def _weighed(
    logits: torch.Tensor, temperatures: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """In float32: of each row the largest logit, what each is above it, e to that, and the sum of these."""
    scaled = logits.float() if temperatures is None else logits.float() / temperatures[:, None]
    top = scaled.amax(-1, keepdim=True)
    above = (scaled - top).clamp_(min=LOWEST)
    weights = above.exp()
    return top[:, 0], above, weights, weights.sum(-1)


def _way(logits: torch.Tensor) -> type[Plain] | ModuleType:
    return _kernels() if logits.is_cuda else Plain


@functools.cache
def _kernels() -> type[Plain] | ModuleType:
    """Of CUDA devices. Triton compiles them, for which it needs a C compiler; where it fails, PyTorch's operations do."""
    try:
        from . import logprobs_kernel

        if not differs(logprobs_kernel, torch.device("cuda")):
            return logprobs_kernel
        print("log-probabilities: the kernels compute others than they should, and are not used", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 whatever it lacks
        print(f"log-probabilities are slower on the device, where Triton compiles no kernel: {error}", file=sys.stderr)
    return Plain


def differs(way: Any, device: torch.device, rows: int = 5, vocabulary: int = 9001, seed: int = 1) -> bool:
    """Whether it computes others than PyTorch does, beyond rounding."""
    draw = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(shape, generator=draw).to(device)  # noqa: E731
    tokens = torch.randint(vocabulary, (rows,), generator=draw).to(device)
    for dtype in (torch.float32, torch.bfloat16):
        for temperatures in (None, random(rows).abs() + 0.5):
            logits = (4 * random(rows, vocabulary)).to(dtype)
            found, measured = (list(each.measure(logits, tokens, temperatures)) for each in (way, Plain))
            expected = list(measured)
            for slopes in ((random(rows), None), (None, random(rows)), (random(rows), random(rows))):
                for each, results in ((way, found), (Plain, expected)):
                    results.append(each.slopes_(logits.clone(), tokens, temperatures, *measured[1:], *slopes))
            if not all(torch.allclose(one, other, rtol=1e-5 if one.dtype == torch.float32 else 1e-2, atol=1e-5) for one, other in zip(found, expected, strict=True)):
                return True
    return False
