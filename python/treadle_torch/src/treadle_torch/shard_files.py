"""A checkpoint in as many files as the engine has processes: each writes what it has, all at once, and nothing is gathered.

SHC1 a file that is told of is on the disk, and its SHA-256 is that of what was written. The folder is aside until Node, whose manifest
     lists the files, renames it.
SHC2 the files of a checkpoint are of one save: they agree on all but their rank, and none is missing or there twice.
SHC3 a process reads its own rows, whichever files have them. So any number of processes goes on from what any number has saved, with
     the same numbers, bit for bit.
SHC4 every part that is read has its CRC-32, and its numbers are those that a step may begin with; all processes take the checkpoint
     or none.

A file is a safetensors file: `weights/<name>`, `first_moments/<name>` and `second_moments/<name>` are this process's rows of each
parameter, in float32. What the checkpoint is of stands in its metadata. The header is made from what is expected of it, and
compared: nothing of a file is trusted before.

PyTorch's distributed checkpoint (`torch.distributed.checkpoint`) reshards, too, and is not used: its `FileSystemReader` unpickles
`.metadata`, so whoever can write to the folder could run code here. Its safetensors writer has no checksums, flushes nothing, and
says nothing of versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .checkpoint import PIECE_BYTES, UNREADABLE, layout_in, refuse, refuse_other_model, write_flushed
from .crc import crc32
from .errors import Refusal, invalid
from .parameters import Parameters
from .sharding import Shards, rows_of
from .weight_files import THREADS, Tensor, bytes_of, header_of, is_finite

FORMAT = "treadle-shard-1"
KINDS = ("weights", "first_moments", "second_moments")
# A header is a few names; a damaged length must not take the memory.
MOST_HEADER_BYTES = 64 * 2**20
# JavaScript counts no further without rounding, and Python's ranges go as far.
MOST_COUNT = 2**53 - 1
# Products of more sizes would take long.
MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class Facts:
    """What all files of a checkpoint say. `save` is drawn for each, so that files of two are told apart."""

    save: str
    policy_version: int
    steps: int
    ranks: int
    layout: list[dict[str, Any]]
    base: str | None
    below: list[str] | None


@dataclass(frozen=True)
class Written:
    sha256: str
    num_bytes: int


class Shard:
    """What one process has of a checkpoint: a copy, on the host, that nobody changes."""

    def __init__(self, facts: Facts, rank: int, parts: Sequence[torch.Tensor]) -> None:
        """Of parameters, first and second moments."""
        self._facts = facts
        self._rank = rank
        self._parts = parts

    def write_to(self, path: str) -> Written:
        """SHC1."""
        with ThreadPoolExecutor(THREADS) as pool:
            checksums = list(pool.map(lambda each: crc32(bytes_of(each)), self._parts))
        header = _header(self._facts, self._rank, checksums)
        summed = hashlib.sha256()

        def pieces() -> Iterator[memoryview]:
            for data in (memoryview(header), *map(bytes_of, self._parts)):
                for start in range(0, len(data), PIECE_BYTES):
                    piece = data[start : start + PIECE_BYTES]
                    yield piece
                    summed.update(piece)

        write_flushed(path, pieces())
        return Written(summed.hexdigest(), len(header) + sum(each.nbytes for each in self._parts))


class Copies:
    """The last copy that was made, until somebody writes it. Jobs make it; it is written beside them."""

    def __init__(self) -> None:
        self._save = ""
        # By process.
        self._shards: dict[int, Shard] = {}

    def make(self, facts: Facts, shards: Shards, parts: Sequence[torch.Tensor]) -> None:
        """Of an engine that is not loaded yet, the first process has all (SD3)."""
        self._shards = {}  # one that nobody has written
        own = [each.detach().to("cpu", torch.float32, copy=True).contiguous() for each in parts]
        each_of = {shards.rank: own} if shards.has_parts else {rank: _cut(own, rank, shards.size) for rank in range(shards.size)}
        made = {rank: Shard(facts, rank, each) for rank, each in each_of.items()}
        self._save, self._shards = facts.save, made

    def ranks_of(self, save: str) -> set[int]:
        """Whose parts this process has of it."""
        if not self._shards or self._save != save:
            raise invalid("the copy is not there any more: it was taken, or another has been made since")
        return set(self._shards)

    def write(self, save: str, paths: Mapping[int, str]) -> dict[int, Written]:
        """What this process has of it, by process: once."""
        self.ranks_of(save)
        own, self._shards = self._shards, {}
        return {rank: shard.write_to(paths[rank]) for rank, shard in own.items()}


def _cut(wholes: Sequence[torch.Tensor], rank: int, size: int) -> list[torch.Tensor]:
    """What a process would have of them."""
    rows = [rows_of(rank, size, len(each)) for each in wholes]
    return [each[own.start : own.stop] for each, own in zip(wholes, rows, strict=True)]


@dataclass(frozen=True)
class Part:
    """A tensor of a file."""

    offset: int
    rows: range
    crc32: int


class ShardFile:
    """One that was opened and fits what it says of itself."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # A pipe of that name would be waited for.
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            refuse(f"'{path}' cannot be read: {error.strerror}")
        try:
            size = os.fstat(self._fd).st_size
            head = self._metadata(size)
            try:
                self.rank, checksums = json.loads(head.pop("rank")), [int(each, 16) for each in json.loads(head.pop("crc32"))]
                kind, self.facts = head.pop("format"), _facts_in(head)
                if not _is_count(self.rank, self.facts.ranks - 1) or not isinstance(kind, str):
                    raise ValueError
                header = _header(self.facts, self.rank, checksums)
            except UNREADABLE:
                refuse(f"'{path}' does not say what it is of")
            if kind != FORMAT:
                refuse(f"'{path}' is of the format {kind!a} where '{FORMAT}' is read")
            if os.pread(self._fd, len(header), 0) != header:
                refuse(f"the header of '{path}' is not that of the shard that it says it is")
            tensors = _tensors(self.facts, self.rank, checksums)
            end = len(header) + sum(each.num_bytes for each in tensors)
            if size != end:
                refuse(f"'{path}' has '{size}' bytes where its header tells of '{end}'")
            self._parts: dict[str, Part] = {}
            offset = len(header)
            rows = [rows_of(self.rank, self.facts.ranks, each["shape"][0]) for each in self.facts.layout]
            for each, own in zip(tensors, rows * len(KINDS), strict=True):
                self._parts[each.name] = Part(offset, own, each.crc32)
                offset += each.num_bytes
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._fd)

    def read(self, name: str, into: torch.Tensor, rows: range) -> None:
        """The rows of the tensor that this file has of them, to their place; the rest stays (SHC3, SHC4)."""
        part = self._parts[name]
        shared = range(max(rows.start, part.rows.start), min(rows.stop, part.rows.stop))
        if len(shared) == 0:
            return
        found = torch.empty((len(part.rows), *into.shape[1:]))
        data = bytes_of(found)
        checksum, at = 0, 0
        while at < len(data):
            count = os.preadv(self._fd, [data[at : at + PIECE_BYTES]], part.offset + at)
            if count == 0:
                refuse(f"'{self.path}' ends in '{name}'")
            checksum = crc32(data[at : at + count], checksum)
            at += count
        if checksum != part.crc32:
            refuse(f"'{name}' in '{self.path}' has checksum '{checksum:08x}' where '{part.crc32:08x}' was written")
        if not is_finite(found) or (name.startswith(KINDS[2]) and bool((found < 0).any())):
            refuse(f"'{name}' in '{self.path}' has numbers that are not allowed there; its processes wrote them so")
        own = range(shared.start - part.rows.start, shared.stop - part.rows.start)
        into[shared.start - rows.start : shared.stop - rows.start] = found[own.start : own.stop]

    def _metadata(self, size: int) -> dict[str, Any]:
        start = os.pread(self._fd, 8, 0)
        (length,) = struct.unpack("<Q", start) if len(start) == 8 else (MOST_HEADER_BYTES,)
        if 8 + length > min(size, MOST_HEADER_BYTES):
            refuse(f"'{self.path}' has '{size}' bytes, and ends in its header or has none")
        try:
            found = json.loads(os.pread(self._fd, length, 8))["__metadata__"]
        except UNREADABLE:
            found = None
        if not isinstance(found, dict):
            refuse(f"the header of '{self.path}' cannot be read")
        return found


@dataclass(frozen=True)
class Own:
    """Of a checkpoint what one process has: parts of parameters, first and second moments."""

    policy_version: int
    steps: int
    parts: list[torch.Tensor]


def read_shards(paths: Sequence[str], parameters: Parameters, base: str | None) -> Own:
    """Refuses unless it is whole and of this model. Only the first process knows the `base` that is below an adapter."""
    shards = parameters.shards
    own: Own | None = None
    problem: str | None = None
    try:
        own = _read(paths, parameters, base)
    except Refusal as refusal:
        problem = str(refusal)
    except OSError as error:
        problem = f"checkpoint refused: its files cannot be read: {error.strerror}"
    first = shards.first_of(problem)
    if first is not None or own is None:
        raise Refusal("checkpoint.corrupt", first or "")
    return own


def _read(paths: Sequence[str], parameters: Parameters, base: str | None) -> Own:
    files: list[ShardFile] = []
    try:
        for path in paths:
            files.append(ShardFile(path))
        facts = _agreed(files)
        refuse_other_model(facts.layout, parameters)
        if parameters.shards.is_lead and facts.base != base:
            refuse(
                f"it is of an adapter over the weights '{facts.base}' where the adapter of this engine is over '{base}'; "
                "set engine.path, engine.lora and its alpha as they were"
            )
        parts: list[torch.Tensor] = []
        for kind in KINDS:
            for name, shape in parameters.layout:
                rows = parameters.shards.rows(shape[0])
                part = torch.empty((len(rows), *shape[1:]))
                for file in files:
                    file.read(f"{kind}/{name}", part, rows)
                parts.append(part)
        return Own(facts.policy_version, facts.steps, parts)
    finally:
        for file in files:
            file.close()


def _agreed(files: Sequence[ShardFile]) -> Facts:
    """SHC2."""
    if not files:
        refuse("it has no files")
    facts = files[0].facts
    for each in files[1:]:
        if each.facts.ranks != facts.ranks:
            refuse(f"'{files[0].path}' is one of '{facts.ranks}' files and '{each.path}' one of '{each.facts.ranks}'")
        if each.facts != facts:
            refuse(
                f"'{files[0].path}' is of policy version '{facts.policy_version}' and save '{facts.save}', "
                f"'{each.path}' of '{each.facts.policy_version}' and '{each.facts.save}'"
            )
    found = sorted(each.rank for each in files)
    # Nothing is made of how many there should be, which a file may say as it likes: the first that is missing is at most `len(found)`.
    missing = next((rank for rank in range(facts.ranks) if rank not in found), None)
    if missing is not None or len(found) != facts.ranks:
        what = "one of them is there twice" if missing is None else f"that of process '{missing}' is missing"
        refuse(f"it was saved by '{facts.ranks}' processes, and the files are those of '{', '.join(map(str, found))}': {what}")
    return facts


def _tensors(facts: Facts, rank: int, checksums: Sequence[int]) -> list[Tensor]:
    shapes: list[tuple[str, tuple[int, ...]]] = [
        (f"{kind}/{each['name']}", (len(rows_of(rank, facts.ranks, each["shape"][0])), *each["shape"][1:]))
        for kind in KINDS
        for each in facts.layout
    ]
    return [Tensor(name, shape, "F32", crc) for (name, shape), crc in zip(shapes, checksums, strict=True)]


def _header(facts: Facts, rank: int, checksums: Sequence[int]) -> bytes:
    said = {name: json.dumps(value, separators=(",", ":")) for name, value in asdict(facts).items()}
    said |= {"format": FORMAT, "rank": str(rank), "crc32": json.dumps([f"{each:08x}" for each in checksums])}
    return header_of(_tensors(facts, rank, checksums), said)


def _facts_in(head: dict[str, str]) -> Facts:
    """Throws what Python does where they are not of their types."""
    said = Facts(**{name: json.loads(value) for name, value in head.items()})
    whole = (
        all(_is_count(each) for each in (said.policy_version, said.steps, said.ranks))
        and said.ranks > 0
        and isinstance(said.save, str)
        and isinstance(said.base, str | None)
        and (said.below is None) == (said.base is None)
        and (said.below is None or _are_all(str, said.below))
        and _are_all(dict, said.layout)
        and all(_is_parameter(each) for each in said.layout)
    )
    if not whole:
        raise ValueError
    json.dumps(asdict(said), ensure_ascii=False).encode()  # half a character could not be told to anybody
    return said


def _is_count(value: object, most: int = MOST_COUNT) -> bool:
    return type(value) is int and 0 <= value <= most


def _are_all(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(isinstance(each, kind) for each in values)


def _is_parameter(said: dict[str, Any]) -> bool:
    """Its own rows in the file are bounded by the file's size, with which they are compared."""
    shape = said["shape"]
    fits = isinstance(shape, list) and 0 < len(shape) <= MOST_DIMENSIONS and all(_is_count(each) for each in shape)
    return fits and isinstance(said["name"], str) and len(said) == 2


def facts_of(parameters: Parameters, save: str, policy_version: int, steps: int, base: str | None, below: list[str]) -> Facts:
    """`base`: of what is below an adapter, as the first process knows it."""
    layout = layout_in(parameters)
    return Facts(save, policy_version, steps, parameters.shards.size, layout, base, None if base is None else below)
