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
        scaled = _tempered(logits, temperatures)
        logp = torch.log_softmax(scaled, -1, dtype=torch.float32)
        logprobs = logp.gather(1, tokens[:, None])[:, 0]
        normalisers = scaled.gather(1, tokens[:, None])[:, 0].float() - logprobs
        return logprobs, torch.special.entr(logp.exp_()).sum(-1), normalisers

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
        scaled = _tempered(logits, temperatures)
        slope = torch.softmax(scaled, -1, dtype=torch.float32)
        if of_entropies is not None:
            surprise = torch.log_softmax(scaled, -1, dtype=torch.float32).add_(entropies[:, None])
            of_entropy = surprise.mul_(slope).mul_(-of_entropies[:, None])
        if of_logprobs is None:
            slope.zero_()
        else:
            slope.mul_(-of_logprobs[:, None])
            slope.scatter_add_(1, tokens[:, None], of_logprobs[:, None])
        if of_entropies is not None:
            slope.add_(of_entropy)
        if temperatures is not None:
            slope.div_(temperatures[:, None])
        return logits.copy_(slope)


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


def _tempered(logits: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
    return logits if temperatures is None else logits.float() / temperatures[:, None]
