"""Keys and values of every slot, in place from the first token on: a step writes into them and copies none."""

from __future__ import annotations

from typing import Protocol

import torch

from .device import size_of


class Target(Protocol):
    """Which places of the cache a pass writes, and what of it the pass sees."""

    def store(self, stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """`stored` is `[slots, heads, positions, size]`, `new` `[rows, heads, tokens, size]`; answers what is seen, in its shape."""
        ...


class Prompts:
    """A packed row of sequences from their first token on, which see nothing but themselves."""

    def __init__(self, slots: torch.Tensor, positions: torch.Tensor) -> None:
        self._slots, self._positions = slots, positions

    def store(self, stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        stored[self._slots, :, self._positions] = new[0].transpose(0, 1)
        return new


class Rows:
    """Some tokens of each of some slots, that see the first `length` positions of their own."""

    def __init__(self, slots: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        self._slots, self._positions, self._length = slots, positions, length

    def store(self, stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        stored[self._slots[:, None], :, self._positions] = new.transpose(1, 2)
        return stored[self._slots, :, : self._length]


class FirstSlots:
    """One token of each of the first slots: what they see is a view of the cache."""

    def __init__(self, slots: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        self._slots, self._positions, self._length = slots, positions, length

    def store(self, stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        stored[self._slots, :, self._positions] = new[:, :, 0]
        return stored[: len(self._slots), :, : self._length]


class SlotCache:
    """What a model's attention updates and reads, `[slots, heads, positions, size]` a layer."""

    is_compileable = False

    def __init__(self, slots: int, positions: int) -> None:
        self._shape = (slots, positions)
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._target: Target | None = None

    @property
    def num_bytes(self) -> int:
        return size_of(each for layer in self._layers for each in layer)

    def aim(self, target: Target) -> None:
        """The next pass writes there."""
        self._target = target

    def move(self, source: int, target: int, length: int) -> None:
        for layer in self._layers:
            for stored in layer:
                stored[target, :, :length] = stored[source, :, :length]

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._target is not None
        slots, positions = self._shape
        while len(self._layers) <= layer:
            make = lambda new: new.new_zeros(slots, new.shape[1], positions, new.shape[3])  # noqa: E731
            self._layers.append((make(keys), make(values)))
        stored = self._layers[layer]
        return self._target.store(stored[0], keys), self._target.store(stored[1], values)

    def get_seq_length(self, *_: object) -> int:
        return 0
