"""AdamW as packages/engines/src/optimiser.ts has it: the same step on the same gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from .errors import Refusal

# Its square is finite in float32; a second moment that is not would stop its parameter for good.
LARGEST_GRAD_NORM = 1e19


@dataclass(frozen=True)
class Step:
    learning_rate: float
    scale: float
    max_grad_norm: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


class AdamW:
    """Decoupled weight decay, of matrices only. A step is taken as a whole or not at all."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.first = [torch.zeros_like(each) for each in parameters]
        self.second = [torch.zeros_like(each) for each in parameters]
        self.steps = 0

    def zero(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> list[torch.Tensor]:
        return [torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters]

    @torch.no_grad()
    def step(self, step: Step) -> float:
        gradients = self.gradients()
        squares = math.fsum(each.double().square().sum().item() for each in gradients)
        grad_norm = math.sqrt(squares) * abs(step.scale) if math.isfinite(squares) else squares
        if not math.isfinite(grad_norm):
            raise _diverged(
                f"the gradient's norm is '{grad_norm}' where a finite one was expected; "
                "lower the learning rate or bound the gradient's norm"
            )
        if min(grad_norm, step.max_grad_norm) > LARGEST_GRAD_NORM:
            raise _diverged(
                f"the gradient's norm is '{grad_norm}' where at most {LARGEST_GRAD_NORM} was expected, "
                "whose square Adam can keep in float32; set maxGradNorm, or lower the learning rate"
            )
        factor = step.scale * min(1.0, step.max_grad_norm / max(grad_norm, 5e-324))
        after = lambda index: self._after(index, gradients[index].double() * factor, step)  # noqa: E731
        # All weights are looked at before the first is written.
        for index in range(len(self.parameters)):
            if not after(index)[0].float().isfinite().all():
                raise _diverged(
                    "the step would make a weight that float32 cannot hold; lower the learning rate or the weight decay"
                )
        for index, parameter in enumerate(self.parameters):
            value, first, second = after(index)
            parameter.copy_(value)
            self.first[index].copy_(first)
            self.second[index].copy_(second)
        self.steps += 1
        self.zero()
        return grad_norm

    def _after(self, index: int, gradient: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """In float64; the gradient is scaled and bounded."""
        value = self.parameters[index].double()
        steps = self.steps + 1
        first = step.beta1 * self.first[index].double() + (1 - step.beta1) * gradient
        second = step.beta2 * self.second[index].double() + (1 - step.beta2) * gradient.square()
        corrected = (second / (1 - step.beta2**steps)).sqrt() + step.epsilon
        moved = step.learning_rate / (1 - step.beta1**steps) * first / corrected
        decay = step.learning_rate * step.weight_decay * value if value.dim() > 1 else 0.0
        return value - (moved + decay), first, second


def _diverged(message: str) -> Refusal:
    return Refusal("engine.diverged", message)
