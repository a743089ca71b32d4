"""What is trained: parameters in float32, their gradients, and the copy that passes compute with where it has fewer bits.

A copy of the model in bfloat16, rather than autocast over float32: each weight is rounded once a step and not in each pass,
activations between products have half the bytes, and sampler and trainer compute the same numbers.
"""

from __future__ import annotations

import torch
from torch import nn


class Parameters:
    """The float32 parameters of a model in bfloat16 exist from the first call that trains or needs them exactly."""

    def __init__(self, named: list[tuple[str, nn.Parameter]]) -> None:
        self.named = named
        self.gradients: list[torch.Tensor | None] = [None] * len(named)
        self._masters: list[torch.Tensor] | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda each, at=index: self._collect(at, each))
            for index, (_, parameter) in enumerate(named)
        ]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.named]

    @property
    def num_elements(self) -> int:
        return sum(parameter.numel() for _, parameter in self.named)

    def masters(self) -> list[torch.Tensor]:
        """In float32: the parameters themselves where they are."""
        if self._masters is None:
            self._masters = [each if each.dtype == torch.float32 else each.detach().float() for _, each in self.named]
        return self._masters

    def exact(self) -> list[torch.Tensor]:
        """As `masters`, and makes none that would stay."""
        return self._masters or [each for _, each in self.named]

    @torch.no_grad()
    def publish(self) -> None:
        """Rounds what was trained into the copy that computes."""
        pairs = [(each, master) for (_, each), master in zip(self.named, self.masters(), strict=True) if each is not master]
        if pairs:
            torch._foreach_copy_(*(list(each) for each in zip(*pairs, strict=True)))

    @torch.no_grad()
    def write(self, parts: list[torch.Tensor]) -> None:
        """Weights from elsewhere, in whatever numbers. Float32 ones are kept only where something is trained."""
        keeps = self._masters is not None
        targets = self.masters() if keeps else [each for _, each in self.named]
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part)
        if keeps:
            self.publish()

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = flat.split([each.numel() for _, each in self.named])
        return [part.view(each.shape) for part, (_, each) in zip(parts, self.named, strict=True)]

    def zero(self) -> None:
        self.gradients = [None] * len(self.named)

    def held(self) -> list[torch.Tensor]:
        """Everything of the weights that takes memory."""
        own = [each for each in self._masters or [] if not isinstance(each, nn.Parameter)]
        return [*(each for _, each in self.named), *own]

    def close(self) -> None:
        """Another may have the model."""
        for hook in self._hooks:
            hook.remove()

    def _collect(self, index: int, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        sum_ = self.gradients[index]
        if sum_ is None:
            self.gradients[index] = gradient.float()
        else:
            sum_.add_(gradient)
