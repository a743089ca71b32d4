"""Published weights in a device's memory, which other processes map (CUDA IPC): no byte of them leaves the device.

WB1 a block is written before anybody is told of it, and again, for a newer version, once nobody finds it by the older one's ticket.
WB2 it is written again or freed while nobody maps it. Whoever does holds a lock on the file beside it, which the system takes from a
    process that ends. Nobody waits: one that is mapped is freed with a later call.
WB3 a receiver verifies all tensors before it writes any: their checksums, and that their numbers are finite.

A block is no memory of PyTorch's allocator, which would share with it whatever else lies in the same piece, and keep that until
each receiver has said that it is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from .crc import ROW_BYTES, checksums, num_rows
from .weight_files import DTYPES, Root, Tensor, Ticket, is_finite, layout_of, open_published, refuse, refuse_checksum, summed

DEVICE = "device"
HANDLE_BYTES = 64
# What is allocated in one piece, and mapped in one.
PAGE_BYTES = 2 * 2**20
# Left to what computes beside a block.
SPARE_BYTES = 2**30


class Block(Protocol):
    """`rows`: uint8, `[rows, 256]`."""

    rows: torch.Tensor
    handle: bytes

    def free(self) -> None: ...


class Blocks(Protocol):
    """Of the device that `uuid` names."""

    uuid: str

    def make(self, rows: int) -> Block | None:
        """None where there is no room, or the device does not share its memory."""

    def map(self, handle: bytes, rows: int) -> contextlib.AbstractContextManager[torch.Tensor]:
        """Another process's rows. Raises OSError."""


class Offer:
    """The weights of one version as they were published: in a block until the device is needed, then on the host."""

    def __init__(self, block: Block, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        layout = layout_of(named)
        self._block: Block | None = block
        self._rows = block.rows
        _put(self._rows, layout, [each.detach() for _, each in named])
        sums = checksums(self._rows, [each.num_bytes for each in layout])
        self.tensors = summed(layout, sums)
        self.handle = block.handle
        self._path = ""
        self._lock = -1

    def open_to_others(self, ticket: Ticket) -> None:
        self._path = os.path.join(ticket.store, ticket.folder, DEVICE)
        self._lock = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)

    @property
    def size(self) -> int:
        return self._rows.numel()

    @property
    def num_bytes(self) -> int:
        """That it has on the device."""
        return 0 if self._block is None else self.size

    def named(self) -> list[tuple[str, torch.Tensor]]:
        return [(each.name, view) for each, view in zip(self.tensors, _views(self._rows, self.tensors), strict=True)]

    def leave(self) -> None:
        """To the host, and off the device once nobody maps it there."""
        if self._block is not None:
            if self._rows is self._block.rows:
                self._rows = self._rows.to("cpu", copy=True)
            self.free()

    def free(self) -> None:
        """`num_bytes` is 0 then, and else somebody maps it."""
        if (block := self.take()) is not None:
            block.free()

    def take(self) -> Block | None:
        """The block, for whatever else. None while somebody maps it (WB2), or where it was taken before."""
        if (block := self._block) is None:
            return None
        if self._lock >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            os.close(self._lock)
        self._block = None
        return block


def rows_of(tensors: Sequence[Tensor]) -> int:
    return sum(num_rows(each.num_bytes) for each in tensors)


@contextlib.contextmanager
def verified(ticket: Ticket, roots: list[Root], blocks: Blocks) -> Iterator[list[torch.Tensor]]:
    """Another process's, on the device, while it has them (WB2, WB3). Refuses with `engine.weights-mismatch`."""
    assert ticket.device is not None
    if ticket.device.uuid != blocks.uuid:
        raise refuse(ticket, f"they are on the device '{ticket.device.uuid}', and this engine is on '{blocks.uuid}'")
    lock = open_published(ticket, roots, DEVICE)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_there = os.fstat(lock).st_nlink > 0
        except BlockingIOError:
            is_there = False
        if not is_there:
            raise refuse(ticket, "they have left the device")
        with contextlib.ExitStack() as stack:
            try:
                rows = stack.enter_context(blocks.map(ticket.device.handle, rows_of(ticket.tensors)))
            except OSError as error:
                raise refuse(ticket, f"the device's memory cannot be mapped: {error}") from error
            yield verify_rows(ticket, rows)
    finally:
        os.close(lock)


def verify_rows(ticket: Ticket, rows: torch.Tensor) -> list[torch.Tensor]:
    """WB3. Views of all tensors."""
    views = _views(rows, ticket.tensors)
    for tensor, found in zip(ticket.tensors, checksums(rows, [each.num_bytes for each in ticket.tensors]), strict=True):
        refuse_checksum(ticket, tensor, found)
    if (name := _not_finite(rows, ticket.tensors, views)) is not None:
        raise refuse(ticket, f"'{name}' has numbers that are not finite")
    return views


def empty_rows(tensors: Sequence[Tensor], device: torch.device) -> torch.Tensor:
    """For such tensors, whose bytes `place_in` puts there."""
    return torch.zeros(rows_of(tensors), ROW_BYTES, dtype=torch.uint8, device=device)


def place_in(rows: torch.Tensor, tensors: Sequence[Tensor], start: int, part: torch.Tensor) -> None:
    """Some of their bytes, uint8, as they follow one another from `start` on."""
    flat, at, end = rows.view(-1), 0, 0
    stop = start + len(part)
    for each in tensors:
        end += num_rows(each.num_bytes) * ROW_BYTES
        first, last = max(at, start), min(at + each.num_bytes, stop)
        if first < last:
            offset = end - each.num_bytes - at
            flat[first + offset : last + offset].copy_(part[first - start : last - start])
        at += each.num_bytes


def _not_finite(rows: torch.Tensor, tensors: Sequence[Tensor], views: list[torch.Tensor]) -> str | None:
    """Of tensors of one type, all are looked at as one: between them are zeros."""
    types = {DTYPES[each.dtype] for each in tensors if each.num_bytes > 0}
    if len(types) == 1 and is_finite(rows.view(-1).view(*types)):
        return None
    return next((each.name for each, view in zip(tensors, views, strict=True) if not is_finite(view)), None)


def _put(rows: torch.Tensor, layout: Sequence[Tensor], values: list[torch.Tensor]) -> None:
    """What is before a tensor in its first row is 0: its checksum is that of its rows."""
    begin = 0
    for each in layout:
        if each.num_bytes > 0:
            rows[begin].zero_()
        begin += num_rows(each.num_bytes)
    for view, value in zip(_views(rows, layout), values, strict=True):
        view.copy_(value)


def _views(rows: torch.Tensor, layout: Sequence[Tensor]) -> list[torch.Tensor]:
    """Each ends where its last row does."""
    flat, end, views = rows.view(-1), 0, []
    for each in layout:
        end += num_rows(each.num_bytes) * ROW_BYTES
        views.append(flat[end - each.num_bytes : end].view(DTYPES[each.dtype]).view(each.shape))
    return views


def blocks_of(device: torch.device) -> Blocks | None:
    """None where processes share no memory of the device, as with ROCm; weights travel in files then."""
    try:
        return CudaBlocks(device)
    except (OSError, AttributeError) as error:
        print(f"weights do not stay on the device: {error}", file=sys.stderr, flush=True)
        return None


class CudaBlocks:
    """By the driver's calls, on the device that is current to the thread which makes them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.uuid = str(torch.cuda.get_device_properties(device).uuid)
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._is_shared = True

    def make(self, rows: int) -> Block | None:
        if not self._is_shared:
            return None
        size = -(-max(1, rows * ROW_BYTES) // PAGE_BYTES) * PAGE_BYTES
        if torch.cuda.mem_get_info(self._device)[0] < size + SPARE_BYTES:
            torch.cuda.empty_cache()
            if torch.cuda.mem_get_info(self._device)[0] < size + SPARE_BYTES:
                return None
        torch.cuda.synchronize(self._device)
        pointer, handle = ctypes.c_uint64(), _Handle()
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        except OSError:
            return None
        try:
            self._call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        except OSError as error:
            self._call("cuMemFree_v2", pointer)
            print(f"weights do not stay on the device: {error}", file=sys.stderr, flush=True)
            self._is_shared = False
            return None
        return _CudaBlock(self, pointer, self._rows(pointer, rows), bytes(handle))

    @contextlib.contextmanager
    def map(self, handle: bytes, rows: int) -> Iterator[torch.Tensor]:
        torch.cuda.synchronize(self._device)
        pointer = ctypes.c_uint64()
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), _Handle.from_buffer_copy(handle), ctypes.c_uint(1))
        try:
            base, size = ctypes.c_uint64(), ctypes.c_size_t()
            self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), pointer)
            if base.value + size.value < pointer.value + rows * ROW_BYTES:
                raise OSError(f"it has '{size.value}' bytes where '{rows * ROW_BYTES}' were published")
            yield self._rows(pointer, rows)
        finally:
            torch.cuda.synchronize(self._device)
            self._call("cuIpcCloseMemHandle", pointer)

    def free(self, pointer: ctypes.c_uint64) -> None:
        torch.cuda.synchronize(self._device)
        self._call("cuMemFree_v2", pointer)

    def _rows(self, pointer: ctypes.c_uint64, rows: int) -> torch.Tensor:
        return torch.as_tensor(_Memory(pointer.value, rows * ROW_BYTES), device=self._device).view(rows, ROW_BYTES)

    def _call(self, name: str, *given: object) -> None:
        if (code := getattr(self._driver, name)(*given)) != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(text))
            raise OSError(f"{name} answered '{(text.value or b'').decode() or code}'")


class _CudaBlock:
    def __init__(self, blocks: CudaBlocks, pointer: ctypes.c_uint64, rows: torch.Tensor, handle: bytes) -> None:
        self._blocks, self._pointer = blocks, pointer
        self.rows, self.handle = rows, handle

    def free(self) -> None:
        self._blocks.free(self._pointer)


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * HANDLE_BYTES)]


class _Memory:
    """As PyTorch reads it, without a copy."""

    def __init__(self, pointer: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (pointer, False), "version": 2}
