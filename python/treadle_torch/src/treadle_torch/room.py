"""Whether a device has room for what an engine is about to bring to it.

DRM1 what cannot fit is refused with the arithmetic, before anything has moved.
DRM2 a restore whose memory runs out leaves nothing of what it was to bring, and those tags stay released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from typing import TYPE_CHECKING

import torch

from .device import Placement, size_of
from .errors import Refusal

if TYPE_CHECKING:
    from .parameters import Parameters
    from .sharding import Shards

GIB = 2**30

# What an engine is made for; `any` where nobody has said, and what it trains is not counted.
USES = ("any", "training", "scoring", "generation")


@dataclass(frozen=True)
class Need:
    """`bytes_each` of so many `things`."""

    what: str
    bytes_each: int
    count: int
    things: str = "parameters"

    @property
    def num_bytes(self) -> int:
        return self.bytes_each * self.count

    def __str__(self) -> str:
        return f"{self.what} {_gib(self.num_bytes)} ({self.bytes_each} bytes × {self.count} {self.things})"


def free_bytes(placement: Placement) -> int | None:
    """That a device has, with what PyTorch keeps for later; None for the host, which nobody counts."""
    if not placement.is_cuda:
        return None
    free, _ = torch.cuda.mem_get_info(placement.device)
    kept = torch.cuda.memory_reserved(placement.device) - torch.cuda.memory_allocated(placement.device)
    return free + kept


def needs_of(tag: str, held: int, use: str, placement: Placement, parameters: Parameters, cache: Need) -> Iterator[Need]:
    """Of this process, of whose model `held` bytes are under the tag now: gradients, moments and cache come later than their tag."""
    shards = parameters.shards
    num_trained = -(-parameters.num_elements // shards.size)
    if not shards.has_parts:
        held //= shards.size  # the first has all of it until it is sharded
    if tag == "cache":
        if use == "generation":
            yield cache
    elif tag == "optimiser":
        yield Need("gradients and moments", 12, num_trained) if use == "training" else Need("gradients and moments", 1, held, "bytes")
    else:
        copies = size_of(parameters.copies())
        each = placement.dtype.itemsize
        yield Need("weights", each, (held - copies) // each)
        if copies > 0 or (use == "training" and each < 4):
            yield Need("what is trained, in float32,", 4, num_trained)


def refuse_without_room(needs: list[Need], placement: Placement, shards: Shards) -> None:
    """DRM1, SD2."""
    own = free_bytes(placement)
    if own is None:
        return
    needed, taken = shards.most(_sum(needs), -own)
    if needed > -taken:
        raise _no_room(needs, needed, f"{_gib(-taken)} are free")


def ran_out(needs: list[Need], placement: Placement, error: torch.OutOfMemoryError) -> Refusal:
    """DRM2: once what had come has left again."""
    return _no_room(needs, _sum(needs), f"{_gib(free_bytes(placement) or 0)} are free, yet memory ran out: {error}")


def _no_room(needs: list[Need], needed: float, has: str) -> Refusal:
    parts = " + ".join(str(each) for each in needs if each.num_bytes > 0)
    return Refusal(
        "device.out-of-memory",
        f"the device has no room for the engine: it needs {_gib(needed)} beside activations ({parts}), and {has}; "
        "see what else has memory on the device, set engine.dtype to 'bfloat16', engine.lora where it trains, fewer model.slots or "
        "a shorter model.contextLength where it generates, shard over more devices by engine.shards, or take a smaller model",
    )


def _sum(needs: list[Need]) -> float:
    return float(sum(each.num_bytes for each in needs))


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.3g} GiB"
