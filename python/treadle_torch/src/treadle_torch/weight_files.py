"""Weights in files, by which engines hand them on without a byte passing through Node.

WF1 a folder that a ticket names is whole: it is written aside, and then renamed.
WF2 a receiver opens only what is this user's alone, is no link, and lies in a store of its own run with the ticket's nonce.
WF3 a receiver takes all tensors or none: each one's place, type, shape, checksum and numbers are checked first, in memory that no
    other process writes to.
WF4 a store ends with its process. One that a killed process has left is removed when another is made beside it.

The file is a safetensors file, so that other programs read it. It is written and read here because the library copies each tensor
before it writes it, and maps the file to read it: one that is cut meanwhile would kill the process. Each thread computes the
checksum of a piece while the piece is in the processor's cache; meanwhile another reads or writes.

Nothing is flushed to a disk. A ticket does not outlive its process, and what a disk loses the checksums tell.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import secrets
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from .crc import crc32
from .device import size_of
from .errors import Refusal

T = TypeVar("T")

FILE = "model.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
NONCE = "nonce"
OWNER = "owner"
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
# As transformers wants them.
PT = {"format": "pt"}
PIECE_BYTES = 4 * 2**20
THREADS = min(4, os.cpu_count() or 1)
# Left free beside what is written: a file system in memory that is full ends other processes.
SPARE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Tensor:
    """As a ticket lists it; `crc32` is zlib's, of its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    crc32: int

    @property
    def num_bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Adapter:
    """What is trained of them, in files of its own beside them."""

    rank: int
    tensors: tuple[Tensor, ...]
    config_crc32: int


@dataclass(frozen=True)
class AdapterParts:
    """What is written of an adapter."""

    rank: int
    named: list[tuple[str, torch.Tensor]]
    config: bytes


@dataclass(frozen=True)
class Device:
    """Whose memory has the weights, and by what handle another process maps it."""

    uuid: str
    handle: bytes


@dataclass(frozen=True)
class Ticket:
    """Which weights, and where: a folder in a store. The folder of those on a device has no file of them, until somebody asks for it."""

    policy_version: int
    store: str
    nonce: str
    folder: str
    tensors: tuple[Tensor, ...]
    adapter: Adapter | None = None
    device: Device | None = None


@dataclass(frozen=True)
class Obstacle:
    """Why weights cannot be published."""

    reason: str


@dataclass(frozen=True)
class Root:
    """Where stores of a run lie: folders in `folder` whose names begin with `prefix`."""

    folder: str
    prefix: str


class Store:
    """What one process publishes, at most one ticket at a time. Made with the first."""

    def __init__(self, root: str, name: str) -> None:
        self._root = root
        self._path = os.path.join(root, name)
        self._nonce = ""
        self._count = 0
        self._last: str | None = None

    @property
    def path(self) -> str:
        return self._path

    def write(
        self, policy_version: int, named: list[tuple[str, torch.Tensor]], parts: AdapterParts | None = None
    ) -> Ticket | Obstacle:
        """In the types that the tensors have. Removes what was published before, once this is there (WF1)."""
        every = [each for _, each in (*named, *(parts.named if parts else ()))]

        def fill(folder: str) -> tuple[tuple[Tensor, ...], Adapter | None]:
            return _write(os.path.join(folder, FILE), named), parts and _write_adapter(folder, parts)

        made = self._make(policy_version, size_of(every), fill)
        if isinstance(made, Obstacle):
            return made
        folder, (tensors, adapter) = made
        return Ticket(policy_version, self._path, self._nonce, folder, tensors, adapter)

    def announce(self, policy_version: int, tensors: tuple[Tensor, ...], device: Device) -> Ticket | Obstacle:
        """Weights that are on a device, in place of what was published before. `add_file` writes their file, where there is room."""
        made = self._make(policy_version, None, lambda folder: None)
        if isinstance(made, Obstacle):
            return made
        return Ticket(policy_version, self._path, self._nonce, made[0], tensors, None, device)

    def add_file(self, ticket: Ticket, named: list[tuple[str, torch.Tensor]]) -> Ticket | Obstacle:
        """Of what was announced last. Done once."""
        folder = os.path.join(self._path, ticket.folder)
        path = os.path.join(folder, FILE)
        written = replace(ticket, device=None)
        if os.path.exists(path):
            return written
        aside = f"{path}.partial"
        try:
            if (obstacle := self._obstacle(size_of([each for _, each in named]))) is not None:
                return obstacle
            tensors = _write(aside, named)
            if tensors != ticket.tensors:
                raise RuntimeError(f"what was published of version '{ticket.policy_version}' has changed since")
            os.rename(aside, path)
        except OSError as error:
            return self._unwritable(error)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
        return written

    def _make(self, policy_version: int, num_bytes: int | None, fill: Callable[[str], T]) -> tuple[str, T] | Obstacle:
        """WF1. `num_bytes`: that `fill` writes; none where that is next to nothing."""
        try:
            if not self._nonce:
                self._open()
            self._count += 1
            folder = f"version-{policy_version}-{self._count}"
            aside = os.path.join(self._path, f"{folder}.partial")
            try:
                if num_bytes is not None and (obstacle := self._obstacle(num_bytes)) is not None:
                    return obstacle
                os.mkdir(aside, 0o700)
                filled = fill(aside)
                os.rename(aside, os.path.join(self._path, folder))
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        except OSError as error:
            return self._unwritable(error)
        if self._last is not None:
            shutil.rmtree(os.path.join(self._path, self._last), ignore_errors=True)
        self._last = folder
        return folder, filled

    def _unwritable(self, error: OSError) -> Obstacle:
        return Obstacle(f"'{self._root}' cannot be written to: {error.strerror}")

    def close(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def _open(self) -> None:
        os.makedirs(self._root, 0o700, exist_ok=True)
        _remove_abandoned(self._root)
        os.mkdir(self._path, 0o700)
        nonce = secrets.token_hex(16)
        for name, text in ((OWNER, _name_of(os.getpid()) or ""), (NONCE, nonce)):
            with open(os.path.join(self._path, name), "x", opener=_private) as file:
                file.write(text)
        self._nonce = nonce

    def _obstacle(self, num_bytes: int) -> Obstacle | None:
        room = os.statvfs(self._path)
        free = room.f_bavail * room.f_frsize
        if free >= num_bytes + SPARE_BYTES:
            return None
        return Obstacle(f"'{self._root}' has '{free >> 20}' MiB free where '{(num_bytes + SPARE_BYTES) >> 20}' are needed")


def layout_of(named: Sequence[tuple[str, torch.Tensor]]) -> list[Tensor]:
    """Without their checksums, which `summed` adds."""
    return [Tensor(name, tuple(each.shape), NAMES[each.dtype], 0) for name, each in named]


def summed(layout: Sequence[Tensor], checksums: Sequence[int]) -> tuple[Tensor, ...]:
    return tuple(replace(each, crc32=crc) for each, crc in zip(layout, checksums, strict=True))


def refuse_checksum(ticket: Ticket, tensor: Tensor, found: int) -> None:
    if found != tensor.crc32:
        raise refuse(ticket, f"'{tensor.name}' has checksum '{found:08x}' where '{tensor.crc32:08x}' was published")


def is_finite(tensor: torch.Tensor) -> bool:
    return tensor.numel() == 0 or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def _write_adapter(folder: str, parts: AdapterParts) -> Adapter:
    tensors = _write(os.path.join(folder, ADAPTER_FILE), parts.named)
    with open(os.path.join(folder, ADAPTER_CONFIG), "xb", opener=_private) as file:
        file.write(parts.config)
    return Adapter(parts.rank, tensors, crc32(parts.config))


def _write(path: str, named: list[tuple[str, torch.Tensor]]) -> tuple[Tensor, ...]:
    layout = layout_of(named)
    header = header_of(layout)
    with open(path, "xb", buffering=0, opener=_private) as file:
        fd = file.fileno()
        put(fd, memoryview(header), 0)

        def write(index: int, offset: int) -> int:
            data = bytes_of(named[index][1].detach().cpu().contiguous())
            checksum = 0
            for start in range(0, len(data), PIECE_BYTES):
                piece = data[start : start + PIECE_BYTES]
                checksum = crc32(piece, checksum)
                put(fd, piece, offset + start)
            return checksum

        checksums = _each(write, layout, len(header))
    return summed(layout, checksums)


def read(ticket: Ticket, roots: list[Root]) -> list[torch.Tensor]:
    """On the host, in the types of the file (WF2, WF3). Refuses with `engine.weights-mismatch`, and says which tensor it was."""
    header = header_of(list(ticket.tensors))
    end = len(header) + sum(each.num_bytes for each in ticket.tensors)
    fd = open_published(ticket, roots, FILE)
    try:
        size = os.fstat(fd).st_size
        if size != end:
            raise refuse(ticket, f"the file has '{size}' bytes where '{end}' were published{_place(ticket, len(header), size)}")
        if os.pread(fd, len(header), 0) != header:
            raise refuse(ticket, "the file's header is not that of the tensors that were published")

        def take(index: int, offset: int) -> torch.Tensor:
            tensor = ticket.tensors[index]
            read_ = torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype])
            data = bytes_of(read_)
            checksum, at = 0, 0
            while at < len(data):
                count = os.preadv(fd, [data[at : at + PIECE_BYTES]], offset + at)
                if count == 0:
                    raise refuse(ticket, f"the file ends in '{tensor.name}'")
                checksum = crc32(data[at : at + count], checksum)
                at += count
            refuse_checksum(ticket, tensor, checksum)
            if not is_finite(read_):
                raise refuse(ticket, f"'{tensor.name}' has numbers that are not finite")
            return read_

        return _each(take, list(ticket.tensors), len(header))
    finally:
        os.close(fd)


def open_published(ticket: Ticket, roots: list[Root], file_name: str) -> int:
    """WF2. One folder after another, so that none of them can be a link."""
    parent, name = os.path.split(ticket.store)
    if not any(parent == root.folder and name.startswith(root.prefix) for root in roots):
        raise refuse(ticket, f"'{ticket.store}' is no folder of this run's weights")
    opened: list[int] = []
    try:
        path = parent
        opened.append(os.open(parent, os.O_RDONLY | os.O_DIRECTORY))
        for part in (name, ticket.folder):
            path = os.path.join(path, part)
            opened.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[-1]))
            _refuse_shared(ticket, opened[-1], path)
            if part == name:
                _refuse_other_store(ticket, opened[-1])
        path = os.path.join(path, file_name)
        # A pipe of that name would be waited for.
        file = os.open(file_name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened[-1])
        opened.append(file)
        _refuse_shared(ticket, file, path)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise refuse(ticket, f"'{path}' is no file")
        return opened.pop()
    except OSError as error:
        raise refuse(ticket, _why(error, path)) from error
    finally:
        for fd in opened:
            os.close(fd)


def _why(error: OSError, path: str) -> str:
    if error.errno == errno.ENOENT:
        return f"'{path}' is not there any more: newer ones were published, or their engine has ended"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return f"'{path}' is a link, or no folder"
    return f"'{path}' cannot be read: {error.strerror}"


def _refuse_shared(ticket: Ticket, fd: int, path: str) -> None:
    found = os.fstat(fd)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise refuse(ticket, f"'{path}' is not this user's alone")


def _refuse_other_store(ticket: Ticket, folder: int) -> None:
    fd = os.open(NONCE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        found = os.read(fd, 256)
    finally:
        os.close(fd)
    if not secrets.compare_digest(found, ticket.nonce.encode()):
        raise refuse(ticket, f"'{ticket.store}' is another engine's: it has another nonce")


def _place(ticket: Ticket, start: int, size: int) -> str:
    """The tensor in which a file ends that is too short."""
    for tensor in ticket.tensors:
        start += tensor.num_bytes
        if size < start:
            return f", and ends in '{tensor.name}'"
    return ""


def refuse(ticket: Ticket, what: str) -> Refusal:
    return Refusal("engine.weights-mismatch", f"weights of version '{ticket.policy_version}' refused: {what}")


def header_of(tensors: Sequence[Tensor], metadata: Mapping[str, str] = PT) -> bytes:
    """Equal tensors have equal headers, so a receiver compares it with its own and parses nothing."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for each in tensors:
        end = offset + each.num_bytes
        entries[each.name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _each(act: Callable[[int, int], T], tensors: list[Tensor], start: int) -> list[T]:
    """Of every tensor's index and place in the file; several at once."""
    offsets: list[int] = []
    for each in tensors:
        offsets.append(start)
        start += each.num_bytes
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(act, range(len(tensors)), offsets))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Its own memory."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def put(fd: int, data: memoryview, offset: int) -> None:
    while len(data) > 0:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _remove_abandoned(root: str) -> None:
    """WF4. Stores whose process on this machine has ended; of another machine's nobody knows here."""
    here = (_name_of(os.getpid()) or "").rpartition("/")[0]
    for store in _stores(root):
        try:
            owner = (store / OWNER).read_text()
        except OSError:
            continue
        machine, _, process = owner.rpartition("/")
        pid = process.partition("-")[0]
        if here and machine == here and pid.isdecimal() and _name_of(int(pid)) != owner:
            shutil.rmtree(store, ignore_errors=True)


def _stores(root: str) -> Iterator[pathlib.Path]:
    for entry in os.scandir(root):
        if not entry.name.startswith("treadle-") or not entry.is_dir(follow_symlinks=False):
            continue
        if entry.stat(follow_symlinks=False).st_uid == os.getuid() and os.path.exists(os.path.join(entry.path, NONCE)):
            yield pathlib.Path(entry.path)


def _name_of(pid: int) -> str | None:
    """Of a running process: no other has it, on any machine; undefined where the system does not say."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        # What follows the name of its program, which may have any characters.
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}/{namespace}/{pid}-{fields[19]}"
