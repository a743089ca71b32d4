"""One model over several processes: each has a part of every parameter, gradient and moment (PyTorch's `fully_shard`).

A part is that of `torch.chunk` over the first dimension; the last may be smaller, or empty.

SD1 all processes make the same calls of collectives in the same order: the first tells the others of a job before it begins.
SD2 a refusal is decided by numbers that all of them have, so all refuse alike. Whatever else fails ends all of them.
SD3 until a model is first loaded, the first process has it whole, on the host, and the others a shell of it: to shard it takes
    memory on devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from .device import Placement, size_of


class Shards:
    """What the processes of one engine do together; a process that is alone does nothing of it."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self._model: nn.Module | None = None

    @staticmethod
    def join(rank: int, size: int, rendezvous: str, timeout_s: float, placement: Placement) -> Shards:
        """Waits for the others, whose `rendezvous` is a file of the same path."""
        if size > 1:
            backend = "cpu:gloo,cuda:nccl" if placement.is_cuda else "gloo"
            dist.init_process_group(
                backend, init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
            )
        return Shards(rank, size)

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    @property
    def is_lead(self) -> bool:
        return self.rank == 0

    @property
    def has_parts(self) -> bool:
        """SD3."""
        return self._model is not None

    def apply(self, model: nn.Module, units: Sequence[nn.Module], placement: Placement) -> None:
        """Each unit is gathered when it is computed and let go of after it, in the backward pass, too.

        Only the first process has the model's weights, and only it has some afterwards: its parts.
        """
        # Few engines have several processes, and these take long to import.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(placement.device.type, (self.size,))
        # Gradients are summed in float32, whatever passes compute in.
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for unit in (*units, model):
            sharded = fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
            # The sum, and not the mean that is the default.
            sharded.set_force_sum_reduction_for_comms(True)
            sharded.set_gradient_divide_factor(1.0)
        if not self.is_lead:
            model.to_empty(device=placement.device)
        self.share(list(model.buffers()))
        self._model = model

    def move(self, device: torch.device) -> int:
        """The parts of all parameters, with the model's buffers. Returns how many bytes are elsewhere now."""
        assert self._model is not None
        moving = [own(each) for each in self._model.parameters() if each.device.type != device.type]
        self._model.to(device)
        return size_of(moving)

    def whole(self, part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """On the first process and its host, of the parts that all have; elsewhere what it is does not matter."""
        if not self.has_parts:
            return part
        padded = self._padded(part.detach().cpu(), shape)
        parts = [torch.empty_like(padded) for _ in range(self.size)] if self.is_lead else None
        dist.gather(padded, parts, dst=0)
        return part if parts is None else torch.cat(parts)[: shape[0]]

    def part(self, whole: torch.Tensor | None, shape: torch.Size) -> torch.Tensor:
        """Of what the first process has, on the host and in float32; all of it where there are no parts."""
        if not self.has_parts:
            assert whole is not None
            return whole
        rows = _rows(shape[0], self.size)
        part = torch.empty((rows, *shape[1:]))
        parts = None
        if whole is not None:
            parts = [self._padded(each, shape) for each in whole.float().contiguous().split(rows)]
            parts += [torch.zeros_like(part)] * (self.size - len(parts))
        dist.scatter(part, parts, src=0)
        return part[: max(0, min(rows, shape[0] - self.rank * rows))]

    def rows(self, count: int) -> range:
        """Which of a parameter's rows this process has."""
        return rows_of(self.rank, self.size, count) if self.has_parts else range(count)

    def share(self, tensors: Sequence[torch.Tensor]) -> None:
        """What the first process has in them, all have then."""
        if not self.is_alone:
            for each in tensors:
                dist.broadcast(each, src=0)

    def agree(self, text: str) -> bool:
        """Whether all have the same."""
        if self.is_alone:
            return True
        own = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
        first = own.clone()
        self.share([first])
        return self.most(not torch.equal(own, first))[0] == 0

    def first_of(self, text: str | None) -> str | None:
        """Of the first process that has one, to all of them."""
        if self.is_alone:
            return text
        found = self.size - 1 - int(self.most(-1 if text is None else self.size - 1 - self.rank)[0])
        if found == self.size:
            return None
        said = torch.frombuffer(bytearray((text or "").encode()) or bytearray(1), dtype=torch.uint8)
        length = torch.tensor([len(said)])
        dist.broadcast(length, src=found)
        said = said if found == self.rank else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(said, src=found)
        return bytes(said.numpy()).decode()

    def sum(self, numbers: torch.Tensor) -> torch.Tensor:
        """On the host, over all processes."""
        numbers = numbers.cpu()
        if not self.is_alone:
            dist.all_reduce(numbers)
        return numbers

    def most(self, *numbers: float) -> list[float]:
        """The largest of all processes. NaN is larger than any other."""
        if self.is_alone:
            return list(numbers)
        each = torch.tensor(numbers, dtype=torch.float64)
        is_nan = each.isnan().double()
        dist.all_reduce(is_nan, op=dist.ReduceOp.MAX)
        each = each.nan_to_num(nan=0.0)
        dist.all_reduce(each, op=dist.ReduceOp.MAX)
        return torch.where(is_nan > 0, torch.nan, each).tolist()

    def _padded(self, part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        rows = _rows(shape[0], self.size)
        if len(part) == rows:
            return part.contiguous()
        padded = part.new_zeros((rows, *shape[1:]))
        padded[: len(part)] = part
        return padded


def own(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of it, in the same memory."""
    with torch.no_grad():
        to_local = getattr(tensor, "to_local", None)
        return tensor if to_local is None else to_local()


def rows_of_each(lengths: torch.Tensor, size: int) -> Iterator[list[int]]:
    """For each process, rows of about as many tokens: the longest first, to whom has fewest so far."""
    rows: list[list[int]] = [[] for _ in range(size)]
    tokens = [0] * size
    for row in lengths.argsort(descending=True, stable=True).tolist():
        rank = min(range(size), key=lambda each: (tokens[each], each))
        rows[rank].append(row)
        tokens[rank] += int(lengths[row])
    yield from rows


def rows_of(rank: int, size: int, count: int) -> range:
    """Of a parameter of so many rows, those of a process: as `fully_shard` gives them, whether it has done so or not."""
    each = _rows(count, size)
    return range(min(rank * each, count), min((rank + 1) * each, count))


def _rows(count: int, size: int) -> int:
    return -(-count // size)
