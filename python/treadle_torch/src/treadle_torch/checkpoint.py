"""Checkpoints in the format of packages/engines/src/checkpoint.ts, which this process writes to a file where it can.

4 bytes `TRDL`, 4 bytes length of the header (little-endian), the header as JSON, then parameters, first and second moments
as little-endian float32, then the SHA-256 of everything before it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import struct
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from .errors import Refusal
from .optimiser import AdamW
from .parameters import Parameters
from .weight_files import bytes_of, put

MAGIC = 0x4C445254
DIGEST_BYTES = 32
PIECE_BYTES = 4 * 2**20
# At once: the system reads no more than 2 GiB.
READ_BYTES = 2**30
# What JSON of any content raises, and what is made of it.
UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


def encode(tensors: list[torch.Tensor]) -> bytes:
    """Float32, whatever they are and wherever."""
    return b"".join(each.detach().float().cpu().contiguous().numpy().tobytes() for each in tensors)


@dataclass(frozen=True)
class Checkpoint:
    """Parameters, first moments and second moments, each whole; none in a process that is not the first."""

    policy_version: int
    steps: int
    tensors: list[torch.Tensor] | None


class Saved:
    """A checkpoint that nobody changes any more: of parameters, first and second moments, in float32 on the host."""

    def __init__(self, head: bytes, tensors: list[torch.Tensor]) -> None:
        self._head = struct.pack("<II", MAGIC, len(head)) + head
        self._tensors = tensors

    @property
    def num_bytes(self) -> int:
        return len(self._head) + 4 * sum(each.numel() for each in self._tensors) + DIGEST_BYTES

    def pieces(self) -> Iterator[memoryview]:
        """All but the SHA-256 of them, by which it ends."""
        yield memoryview(self._head)
        for each in self._tensors:
            data = bytes_of(each)
            for start in range(0, len(data), PIECE_BYTES):
                yield data[start : start + PIECE_BYTES]

    def stream(self, summed: Any = None) -> Iterator[memoryview]:
        """`summed`: a SHA-256, which is that of all that was yielded once the next piece is asked for."""
        summed = hashlib.sha256() if summed is None else summed
        for piece in self.pieces():
            yield piece
            summed.update(piece)
        digest = memoryview(summed.digest())
        yield digest
        summed.update(digest)

    def write_to(self, path: str) -> str:
        """Flushed to the disk; returns the file's own SHA-256."""
        summed = hashlib.sha256()
        write_flushed(path, self.stream(summed))
        return summed.hexdigest()


def write_flushed(path: str, pieces: Iterator[memoryview]) -> None:
    """To the disk. One thread makes the next piece, and sums it up, while another writes."""
    offset = 0
    try:
        # Another file: a process that has begun the same one, and is thought dead, may go on writing its own.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(path, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
            with ThreadPoolExecutor(1) as writer:
                before: Future[None] | None = None
                for piece in pieces:
                    if before is not None:
                        before.result()
                    before = writer.submit(put, file.fileno(), piece, offset)
                    offset += len(piece)
                if before is not None:
                    before.result()
            os.fdatasync(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refusal("disk.full", f"no space left to write '{path}'; free some, then 'treadle resume'") from error
        raise


def save(
    optimiser: AdamW, policy_version: int, wholes: list[torch.Tensor], base: str | None = None, below: list[str] | None = None
) -> Saved:
    """Of parameters, first and second moments; of what is below an adapter, the digest and the names that it is of, in its order (LA3)."""
    layout = layout_in(optimiser.parameters)
    header: dict[str, object] = {"format": 1, "policyVersion": policy_version, "steps": optimiser.steps, "layout": layout}
    if base is not None:
        header["base"] = base
        header["below"] = below
    own = [each.detach().to("cpu", torch.float32, copy=True).contiguous() for each in wholes]
    return Saved(json.dumps(header).encode(), own)


def read_file(path: str, most_bytes: int) -> memoryview:
    """In memory that PyTorch gets: Python would hold its lock meanwhile, and nobody would be told that this process lives."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most_bytes:
                refuse(f"'{path}' has '{size}' bytes where at most '{most_bytes}' are allowed")
            data = memoryview(torch.empty(size, dtype=torch.uint8).numpy())
            at = 0
            while at < size and (count := file.readinto(data[at : at + READ_BYTES])):
                at += count
    except OSError as error:
        refuse(f"'{path}' cannot be read: {error.strerror}")
    if at < size:
        refuse(f"'{path}' ends at '{at}' of its '{size}' bytes")
    return data


def read_checkpoint(data: bytes | bytearray | memoryview, parameters: Parameters, base: str | None = None) -> Checkpoint:
    """Refuses unless everything fits and is finite."""
    body = memoryview(data)[:-DIGEST_BYTES]
    if len(data) < 8 + DIGEST_BYTES or struct.unpack_from("<I", data)[0] != MAGIC:
        refuse("it is no checkpoint of an engine")
    if hashlib.sha256(body).digest() != bytes(data[-DIGEST_BYTES:]):
        refuse("its checksum does not match its content")
    (length,) = struct.unpack_from("<I", data, 4)
    try:
        header = json.loads(bytes(body[8 : 8 + length]))
        version, steps, layout = int(header["policyVersion"]), int(header["steps"]), header["layout"]
    except UNREADABLE:
        refuse("its header cannot be read")
    refuse_other_model(layout, parameters)
    if header.get("base") != base:
        refuse("it is of an adapter over other weights, or of another alpha")
    if len(body) != 8 + length + 12 * parameters.num_elements:
        refuse(f"it has '{len(data)}' bytes")
    numbers = copied(body[8 + length :])
    parts = [part for third in numbers.split(parameters.num_elements) for part in parameters.split(third)]
    count = len(parameters.names)
    for index, part in enumerate(parts):
        if not part.isfinite().all() or (index >= 2 * count and (part < 0).any()):
            what = ("weights", "first moments", "second moments")[index // count]
            refuse(f"its {what} of '{parameters.names[index % count]}' are not all numbers that are allowed")
    return Checkpoint(version, steps, parts)


def copied(data: bytes | bytearray | memoryview) -> torch.Tensor:
    """Its float32 numbers, wherever they begin. PyTorch copies without Python's lock, so that others may be answered."""
    numbers = torch.empty(len(data) // 4, dtype=torch.float32)
    if len(data) > 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nobody writes to what cannot be written to
            numbers.view(torch.uint8).copy_(torch.frombuffer(data, dtype=torch.uint8))
    return numbers


def apply_checkpoint(checkpoint: Checkpoint, optimiser: AdamW) -> None:
    apply_parts(optimiser, optimiser.parameters.parts(checkpoint.tensors, of_each=3), checkpoint.steps)


@torch.no_grad()
def apply_parts(optimiser: AdamW, parts: list[torch.Tensor], steps: int) -> None:
    """Of this process: of parameters, first and second moments."""
    parameters = optimiser.parameters
    firsts, seconds = optimiser.moments()
    for target, part in zip([*parameters.masters(), *firsts, *seconds], parts, strict=True):
        target.copy_(part)
    optimiser.steps = steps
    parameters.zero()
    parameters.publish()


def refuse_other_model(layout: Any, parameters: Parameters) -> None:
    expected = layout_in(parameters)
    if layout == expected:
        return
    try:
        found, own = ({each["name"]: each["shape"] for each in some} for some in (layout, expected))
        names = [name for name in (*own, *found) if own.get(name) != found.get(name)]
    except (TypeError, KeyError):
        names = []
    what = "" if not names else f": '{names[0]}' is '{found.get(names[0], 'absent')}' there and '{own.get(names[0], 'absent')}' in this model"
    refuse(f"it holds parameters of another model{what}")


def layout_in(parameters: Parameters) -> list[dict[str, object]]:
    return [{"name": name, "shape": list(shape)} for name, shape in parameters.layout]


def refuse(what: str) -> NoReturn:
    raise Refusal(
        "checkpoint.corrupt",
        f"checkpoint refused: {what}; use an earlier one or the configuration it was written with",
    )
