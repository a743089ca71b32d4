"""What is trained: parameters in float32, their gradients, and the copy that passes compute with where it has fewer bits.

A copy of the model in bfloat16, rather than autocast over float32: each weight is rounded once a step and not in each pass,
activations between products have half the bytes, and sampler and trainer compute the same numbers.

Where a model is over several processes, all of this is about the parts that this one has; `layout` is about the whole.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from .sharding import Shards, own

ALONE = Shards()
# Of PyTorch's own memory, in bytes.
ALIGNMENT = 64
# The part of received weights that parameters keep as it is, or none.
LEAST_ADOPTED = 0.5


class Tensors:
    """Some of a model's, which nobody trains."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], shards: Shards = ALONE) -> None:
        self.shards = shards
        self.layout = [(name, each.shape) for name, each in named]
        self.hold(named)

    def hold(self, named: list[tuple[str, nn.Parameter]]) -> None:
        """The model's; once it is sharded, they are others."""
        self._parameters = [each for _, each in named]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.layout]

    @property
    def num_elements(self) -> int:
        return sum(shape.numel() for _, shape in self.layout)

    def used(self) -> list[torch.Tensor]:
        """What passes compute with."""
        return [own(each) for each in self._parameters]

    @torch.no_grad()
    def write(self, parts: Iterable[torch.Tensor]) -> None:
        for target, part in zip(self.used(), parts, strict=True):
            target.copy_(part)

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = flat.split([shape.numel() for _, shape in self.layout])
        return [part.view(shape) for part, (_, shape) in zip(parts, self.layout, strict=True)]

    def wholes(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Of one part or more of each parameter, on the first process; all take part."""
        return [self.shards.whole(part, self._shape(index)) for index, part in enumerate(parts)]

    def parts(self, wholes: list[torch.Tensor] | None, of_each: int = 1) -> list[torch.Tensor]:
        """The inverse of `wholes`, of which only the first process has some: so many of each parameter."""
        return [
            self.shards.part(None if wholes is None else wholes[index], self._shape(index))
            for index in range(of_each * len(self.layout))
        ]

    def held(self) -> list[torch.Tensor]:
        """Everything of them that takes memory."""
        return self.used()

    def _shape(self, index: int) -> torch.Size:
        return self.layout[index % len(self.layout)][1]


class Parameters(Tensors):
    """The float32 parameters of a model in bfloat16 exist from the first call that trains or needs them exactly."""

    def hold(self, named: list[tuple[str, nn.Parameter]]) -> None:
        super().hold(named)
        # none where the parameter itself is in float32
        self._copies: list[torch.Tensor | None] | None = None
        self.gradients: list[torch.Tensor | None] = [None] * len(named)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda each, at=index: self._collect(at, each))
            for index, parameter in enumerate(self._parameters)
        ]

    def masters(self) -> list[torch.Tensor]:
        """In float32: the parameters themselves where they are."""
        used = self.used()
        if self._copies is None:
            self._copies = [None if each.dtype == torch.float32 else each.detach().float() for each in used]
        return [each if copy is None else copy for each, copy in zip(used, self._copies, strict=True)]

    def exact(self) -> list[torch.Tensor]:
        """As `masters`, and makes none that would stay."""
        return self.used() if self._copies is None else self.masters()

    @torch.no_grad()
    def publish(self) -> None:
        """Rounds what was trained into the copy that computes."""
        pairs = [(each, copy) for each, copy in zip(self.used(), self._copies or [], strict=True) if copy is not None]
        if pairs:
            torch._foreach_copy_(*(list(each) for each in zip(*pairs, strict=True)))

    @torch.no_grad()
    def write(self, parts: Iterable[torch.Tensor], *, adopts: bool = False) -> None:
        """Weights from elsewhere, in whatever numbers. Float32 ones are kept only where something is trained.

        `adopts`: the parts are nobody else's, and need not be copied where they are as the parameters would be. They may be parts of one
        piece of memory, which the smallest of them holds, so few are not kept for themselves.
        """
        keeps = self._copies is not None
        if adopts:
            parts = list(parts)
            kept = sum(part.nbytes for target, part in zip(self.exact(), parts, strict=True) if _may_replace(part, target))
            adopts = kept >= LEAST_ADOPTED * sum(part.nbytes for part in parts)
        for target, part in zip(self.exact(), parts, strict=True):
            if adopts and _may_replace(part, target):
                target.data = part
            else:
                target.copy_(part)
        if keeps:
            self.publish()

    def zero(self) -> None:
        self.gradients = [None] * len(self.layout)

    def drop(self) -> None:
        """What a backward pass that failed has summed up, and what it was about to."""
        self.zero()
        for each in self._parameters:
            each.grad = None

    def copies(self) -> list[torch.Tensor]:
        """In float32, beside the model."""
        return [each for each in self._copies or [] if each is not None]

    def held(self) -> list[torch.Tensor]:
        return [*super().held(), *self.copies()]

    def close(self) -> None:
        """Another may have the model."""
        for hook in self._hooks:
            hook.remove()

    def _collect(self, index: int, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        gradient = own(gradient)
        sum_ = self.gradients[index]
        if sum_ is None:
            self.gradients[index] = gradient.float()
        else:
            sum_.add_(gradient)


def _may_replace(part: torch.Tensor, target: torch.Tensor) -> bool:
    """Results of kernels may hang on where in a line of the cache a tensor begins."""
    alike = (part.device, part.dtype, part.shape, part.stride()) == (target.device, target.dtype, target.shape, target.stride())
    return alike and part.device.type == "cpu" and part.data_ptr() % ALIGNMENT == 0
