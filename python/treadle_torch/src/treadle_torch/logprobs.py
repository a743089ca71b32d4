"""Log-probabilities of chosen tokens, in float32 whatever the model computes in, without all tokens' logits at once.

Logits of a chunk of tokens at a time are made in float32. Where they fit, those in the model's own numbers are kept for the
backward pass; elsewhere they are made again.
"""

from __future__ import annotations

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
    return _ChosenLogprobs.apply(hidden, head, tokens, temperatures)


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor, temperatures: torch.Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        vocabulary = head.shape[0]
        needs_gradient = any(ctx.needs_input_grad[:2])
        keeps = needs_gradient and hidden.shape[0] * vocabulary * hidden.element_size() <= KEPT_BYTES
        kept = hidden.new_empty(hidden.shape[0], vocabulary) if keeps else None
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logprobs)
        for part in _chunks(hidden.shape[0], vocabulary):
            logits = hidden[part] @ head.T if kept is None else torch.matmul(hidden[part], head.T, out=kept[part])
            logp = torch.log_softmax(_tempered(logits, temperatures, part), -1, dtype=torch.float32)
            logprobs[part] = logp.gather(1, tokens[part, None])[:, 0]
            entropies[part] = torch.special.entr(logp.exp_()).sum(-1)
        ctx.save_for_backward(hidden, head, tokens, temperatures, entropies)
        ctx.kept = kept
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, of_logprobs: torch.Tensor | None, of_entropies: torch.Tensor | None) -> Any:
        hidden, head, tokens, temperatures, entropies = ctx.saved_tensors
        kept, ctx.kept = ctx.kept, None
        to_hidden = torch.empty_like(hidden)
        # Summed over chunks in float32; over all tokens at once where their logits are there.
        to_head = torch.zeros(head.shape, dtype=torch.float32, device=head.device) if kept is None else None
        for part in _chunks(hidden.shape[0], head.shape[0]):
            logits = hidden[part] @ head.T if kept is None else kept[part]
            scaled = _tempered(logits, temperatures, part)
            slope = torch.softmax(scaled, -1, dtype=torch.float32)
            if of_entropies is not None:
                surprise = torch.log_softmax(scaled, -1, dtype=torch.float32).add_(entropies[part, None])
                of_entropy = surprise.mul_(slope).mul_(-of_entropies[part, None])
            if of_logprobs is None:
                slope.zero_()
            else:
                slope.mul_(-of_logprobs[part, None])
                slope.scatter_add_(1, tokens[part, None], of_logprobs[part, None])
            if of_entropies is not None:
                slope.add_(of_entropy)
            if temperatures is not None:
                slope.div_(temperatures[part, None])
            if kept is None:
                slopes = slope.to(hidden.dtype)
                torch.matmul(slopes, head, out=to_hidden[part])
                to_head.add_(slopes.T @ hidden[part])
            else:
                kept[part] = slope
        if kept is None:
            return to_hidden, to_head.to(head.dtype), None, None
        return kept @ head, kept.T @ hidden, None, None


def _chunks(count: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_LOGITS // vocabulary)
    size -= size % 64 if size > 64 else 0
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _tempered(logits: torch.Tensor, temperatures: torch.Tensor | None, part: slice) -> torch.Tensor:
    return logits if temperatures is None else logits.float() / temperatures[part, None]
