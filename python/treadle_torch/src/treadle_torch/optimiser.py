"""AdamW as packages/engines/src/optimiser.ts has it: the same step on the same gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.optim.adamw import adamw

from .errors import Refusal
from .parameters import Parameters

# Its square is finite in float32; a second moment that is not would stop its parameter for good.
LARGEST_GRAD_NORM = 1e19
LARGEST_WEIGHT = 1e38
# Of float64, a dozen of which one step of so many elements needs: they stay in a core's cache.
CACHED_ELEMENTS = 16_384


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
    """Decoupled weight decay, of matrices only. A step is taken as a whole or not at all.

    It is PyTorch's fused kernel, in float32, once a bound of what it can write shows that every weight stays finite. A step that the bound
    does not cover, and one of tensors that lie in memory by other strides, which that kernel mixes up, is computed twice, in float64: all
    weights are looked at before the first is written. Of a sharded model each process takes the step of its parts, and all decide alike
    (SD2).
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.steps = 0
        self._moments: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None

    def moments(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """First and second, in float32; they exist from the first step."""
        if self._moments is None:
            make = lambda: [torch.zeros_like(each, dtype=torch.float32) for each in self.parameters.masters()]  # noqa: E731
            self._moments = make(), make()
        return self._moments

    def forget(self) -> None:
        """Moments of parameters that have not been trained yet, and are about to be others."""
        self._moments = None

    def held(self) -> list[torch.Tensor]:
        """Everything of the optimiser that takes memory, gradients included."""
        gradients = [each for each in self.parameters.gradients if each is not None]
        return [*gradients, *(each for moments in self._moments or () for each in moments)]

    @torch.no_grad()
    def step(self, step: Step) -> float:
        masters = self.parameters.masters()
        gradients = [
            torch.zeros_like(each) if gradient is None else gradient
            for each, gradient in zip(masters, self.parameters.gradients, strict=True)
        ]
        norms = torch.stack([torch.linalg.vector_norm(each, dtype=torch.float64) for each in gradients]).tolist()
        squares = float(self.parameters.shards.sum(torch.tensor(math.fsum(norm * norm for norm in norms), dtype=torch.float64)))
        grad_norm = math.sqrt(squares) * abs(step.scale) if math.isfinite(squares) else squares
        if not math.isfinite(grad_norm):
            raise _diverged(
                f"the gradient's norm is '{grad_norm}' where a finite one was expected; "
                "lower the learning rate or bound the gradient's norm"
            )
        bounded = min(grad_norm, step.max_grad_norm)
        if bounded > LARGEST_GRAD_NORM:
            raise _diverged(
                f"the gradient's norm is '{grad_norm}' where at most {LARGEST_GRAD_NORM} was expected, "
                "whose square Adam can keep in float32; set maxGradNorm, or lower the learning rate"
            )
        factor = step.scale * min(1.0, step.max_grad_norm / max(grad_norm, 5e-324))
        if self.bound(step, bounded) < LARGEST_WEIGHT and self._fits_kernel(gradients):
            self.step_fused(gradients, factor, step)
        else:
            self._step_exactly(masters, gradients, factor, step)
        self.steps += 1
        self.parameters.zero()
        self.parameters.publish()
        return grad_norm

    def _fits_kernel(self, gradients: list[torch.Tensor]) -> bool:
        held = (self.parameters.masters(), gradients, *self.moments())
        return not self.parameters.shards.most(not all(each.is_contiguous() for tensors in held for each in tensors))[0]

    def bound(self, step: Step, grad_norm: float) -> float:
        """No weight is larger after the step: a root of second moments only makes a move smaller."""
        moment, weight = self.parameters.shards.most(_largest(self.moments()[0]), _largest(self.parameters.masters()))
        first = step.beta1 * moment + (1 - step.beta1) * grad_norm
        moved = step.learning_rate / (1 - step.beta1 ** (self.steps + 1)) * first / max(step.epsilon, 5e-324)
        return weight * (1 + step.learning_rate * step.weight_decay) + moved

    def step_fused(self, gradients: list[torch.Tensor], factor: float, step: Step) -> None:
        """Takes the gradients: they are scaled in place. By a factor of 0 they are nothing, as where no token of a batch has weight."""
        masters = self.parameters.masters()
        if factor == 0:
            torch._foreach_zero_(gradients)
            factor = 1.0
        device = masters[0].device
        for decays in (True, False):
            which = [index for index, each in enumerate(masters) if (each.dim() > 1) == decays and each.numel() > 0]
            if not which:
                continue
            pick = lambda tensors: [tensors[index].detach() for index in which]  # noqa: B023, E731
            adamw(
                pick(masters),
                pick(gradients),
                *map(pick, self.moments()),
                [],
                [torch.tensor(float(self.steps), device=device) for _ in which],
                fused=True,
                grad_scale=torch.tensor(1 / factor, dtype=torch.float32, device=device),
                found_inf=torch.zeros((), device=device),
                amsgrad=False,
                beta1=step.beta1,
                beta2=step.beta2,
                lr=step.learning_rate,
                weight_decay=step.weight_decay if decays else 0.0,
                eps=step.epsilon,
                maximize=False,
            )

    def _step_exactly(self, masters: list[torch.Tensor], gradients: list[torch.Tensor], factor: float, step: Step) -> None:
        parts = [
            (pieces, each.dim() > 1)
            for each, *others in zip(masters, *self.moments(), gradients, strict=True)
            for pieces in _pieces([each, *others])
        ]
        after = lambda part: self._after(*part[0], factor, step, decays=part[1])  # noqa: E731
        if self.parameters.shards.most(not all(bool(after(each)[0].float().isfinite().all()) for each in parts))[0]:
            raise _diverged(
                "the step would make a weight that float32 cannot hold; lower the learning rate or the weight decay"
            )
        for part in parts:
            for target, value in zip(part[0], after(part), strict=False):
                target.copy_(value)

    def _after(
        self, master: torch.Tensor, first: torch.Tensor, second: torch.Tensor, gradient: torch.Tensor, factor: float, step: Step, *, decays: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """In float64; the gradient is scaled and bounded by the factor."""
        scaled = gradient.double() * factor
        value = master.double()
        steps = self.steps + 1
        first = step.beta1 * first.double() + (1 - step.beta1) * scaled
        second = step.beta2 * second.double() + (1 - step.beta2) * scaled.square()
        corrected = (second / (1 - step.beta2**steps)).sqrt() + step.epsilon
        moved = step.learning_rate / (1 - step.beta1**steps) * first / corrected
        decay = step.learning_rate * step.weight_decay * value if decays else 0.0
        return value - (moved + decay), first, second


def _pieces(tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """What is written to a piece is written to its tensor, which a copy of other strides would not do."""
    if not all(each.is_contiguous() for each in tensors):
        return [tuple(each.detach() for each in tensors)]
    return list(zip(*(each.detach().view(-1).split(CACHED_ELEMENTS) for each in tensors), strict=True))


def _largest(tensors: list[torch.Tensor]) -> float:
    """NaN where one is."""
    held = [each for each in tensors if each.numel() > 0]
    if not held:
        return 0.0
    if held[0].is_cuda:
        return torch.stack(torch._foreach_norm(held, math.inf)).max().item()
    # Many times as fast on processors.
    return torch.stack([torch.stack(each.aminmax()).abs().max() for each in held]).max().item()


def _diverged(message: str) -> Refusal:
    return Refusal("engine.diverged", message)
