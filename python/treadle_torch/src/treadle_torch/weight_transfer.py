"""Weights from the process that published them to one that cannot open its files, in buckets over a process group of the two.

What is sent is the published file, which does not change: in the order of the ticket, without its header. The receiver checks a bucket while
others are on their way.

WC4 a receiver takes all tensors or none: each one's checksum and numbers are checked first, in memory that is its own.
WC5 a transfer has the weights of one version: the file that it begins with stays open, whatever is published meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from .crc import combined, crc32
from .errors import Refusal
from .weight_blocks import empty_rows, place_in, verify_rows
from .weight_files import DTYPES, FILE, THREADS, Store, Ticket, bytes_of, is_finite, refuse, refuse_checksum
from .weight_link import RECEIVER, SENDER, Gone, Late, Link, LinkSettings, Place, accept, connect, open_place

# Over gloo, which sends from the file and receives where the weights stay; a device's buckets need memory of their own.
BUCKET_BYTES = 8 * 2**20
DEVICE_BUCKET_BYTES = 64 * 2**20
PIECE_BYTES = 4 * 2**20
# On their way at once, or about to be: while one is filled or emptied, or waits for its checks.
BUCKETS = 8
DEVICE_BUCKETS = 2
MAX_LINKS = 1024

FOLDER = re.compile(r"version-\d{1,16}-\d{1,16}")


class Senders:
    """The links of one process to those that it sends to."""

    def __init__(self, store: Store, settings: LinkSettings, device: torch.device) -> None:
        self._store, self._settings, self._device = store, settings, device
        self._open: dict[str, Link | None] = {}
        self._lock = threading.Lock()

    def offer(self, known: str) -> Place:
        """The link that the receiver knows, where it still is one; else a place at which it is awaited until the deadline."""
        with self._lock:
            link = self._open.get(known)
            if link is not None and link.is_open:
                return Place(known)
            if len(self._open) >= MAX_LINKS:
                raise Refusal("engine.invalid-request", f"the trainer's process has '{MAX_LINKS}' links already")
            place, listener = open_place(self._settings)
            self._open[place.link] = None
        threading.Thread(target=self._serve, args=(place, listener), name="sender", daemon=True).start()
        return place

    @property
    def num_links(self) -> int:
        with self._lock:
            return len(self._open)

    def _serve(self, place: Place, listener: socket.socket) -> None:
        """Until the receiver has ended, or something fails; the receiver is told what."""
        channel = link = None
        why = ""
        try:
            channel = accept(listener, place, self._settings.timeout_s)
            link = Link(channel, SENDER, self._settings, self._device)
            with self._lock:
                self._open[place.link] = link
            while True:
                self._send(link, channel.hear(None, "to ask")["folder"])
        except Late as late:
            why = f"the receiver's process did not {str(late).removeprefix('to ')} within {self._settings.timeout_s:g} s"
        except Gone:
            pass
        except Exception as error:  # noqa: BLE001 whatever it is, the receiver is told
            why = f"{type(error).__name__}: {error}"
        finally:
            with self._lock:
                self._open.pop(place.link, None)
            if link is not None:
                link.close(why)
            elif channel is not None:
                channel.close(why)

    def _send(self, link: Link, folder: str) -> None:
        fd = self._opened(folder)
        if fd is None:
            link.channel.say(refused=f"'{folder}' is not there any more: newer ones were published")
            return
        try:
            header = 8 + struct.unpack("<Q", os.pread(fd, 8, 0))[0]
            end = os.fstat(fd).st_size
            link.channel.say(num_bytes=end - header)
            size, most = buckets_of(link)
            source = _Mapped(fd, end) if link.device.type == "cpu" else _Copied(fd, end, link.device)
            going: deque[Any] = deque()
            for start in range(header, end, size):
                if len(going) == most:
                    link.wait(going.popleft(), "to take weights")
                going.append(link.send(source.part(start, min(start + size, end))))
            for work in going:
                link.wait(work, "to take weights")
        finally:
            os.close(fd)

    def _opened(self, folder: str) -> int | None:
        """WC5."""
        if not FOLDER.fullmatch(folder):
            return None
        try:
            return os.open(os.path.join(self._store.path, folder, FILE), os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None


class Receivers:
    """The links of one process to those that it receives from."""

    def __init__(self, settings: LinkSettings, device: torch.device) -> None:
        self._settings, self._device = settings, device
        self._open: dict[str, Link] = {}

    def join(self, place: Place) -> None:
        """Refuses with `worker.late` and `link.closed` (WC3)."""
        self._forget()
        with self._named(f"the trainer's process at '{place.host}:{place.port}'", place.link):
            channel = connect(place, self._settings.timeout_s)
            try:
                link = Link(channel, RECEIVER, self._settings, self._device)
            except BaseException:
                channel.close("the receiver could not join")
                raise
            self._open[place.link] = link

    def receive(self, name: str, ticket: Ticket) -> list[torch.Tensor]:
        """One at a time. Refuses with `engine.weights-mismatch`, whereupon the link goes on (WC4), `worker.late` and `link.closed` (WC3)."""
        with self._named("the trainer's process", name):
            if (link := self._open.get(name)) is None:
                raise Gone(f"'{name}' is no link of this process")
            return _receive(link, ticket)

    @property
    def num_links(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def _named(self, sender: str, name: str) -> Iterator[None]:
        """WC3. What fails has no link afterwards."""
        limit = f"within {self._settings.timeout_s:g} s; see whether it is stopped, or raise engine.collectiveTimeoutMs"
        try:
            yield
        except Refusal as refusal:
            if refusal.code != "engine.weights-mismatch":
                self._drop(name)
            raise
        except Late as late:
            self._drop(name)
            raise Refusal("worker.late", f"{sender} did not {str(late).removeprefix('to ')} {limit}") from late
        except (Gone, RuntimeError, OSError) as error:
            why = self._drop(name) or str(error) or "its process has ended"
            raise Refusal("link.closed", f"the link to {sender} has failed: {why}") from error
        except BaseException:
            self._drop(name)
            raise

    def _forget(self) -> None:
        for name in [name for name, link in self._open.items() if not link.is_open]:
            self._drop(name)

    def _drop(self, name: str) -> str:
        """Returns what the sender has said at its end."""
        link = self._open.pop(name, None)
        if link is None:
            return ""
        said = link.channel.last_words()
        link.close()
        return said


def buckets_of(link: Link) -> tuple[int, int]:
    """How many bytes each has, and how many may be on their way: the same on both sides."""
    return (BUCKET_BYTES, BUCKETS) if link.device.type == "cpu" else (DEVICE_BUCKET_BYTES, DEVICE_BUCKETS)


class _Mapped:
    """A file's bytes where the system has them. It alone reads them: where the file was cut short, a send fails."""

    def __init__(self, fd: int, size: int) -> None:
        self._bytes = torch.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_COPY), dtype=torch.uint8)

    def part(self, start: int, end: int) -> torch.Tensor:
        return self._bytes[start:end]


class _Copied:
    """A file's bytes on a device, by way of the host."""

    def __init__(self, fd: int, size: int, device: torch.device) -> None:
        self._fd, self._device = fd, device
        self._buffer = torch.empty(min(size, DEVICE_BUCKET_BYTES), dtype=torch.uint8)

    def part(self, start: int, end: int) -> torch.Tensor:
        part = self._buffer[: end - start]
        _fill(self._fd, bytes_of(part), start)
        return part.to(self._device, copy=True)


def _receive(link: Link, ticket: Ticket) -> list[torch.Tensor]:
    expected = sum(each.num_bytes for each in ticket.tensors)
    link.channel.say(folder=ticket.folder)
    answer = link.channel.hear(link.settings.timeout_s, "to answer")
    if "refused" in answer:
        raise refuse(ticket, str(answer["refused"]))
    if answer.get("num_bytes") != expected:
        # What it sends nobody reads.
        raise Gone(f"it has '{answer.get('num_bytes')}' bytes of version '{ticket.policy_version}' where '{expected}' were published")
    staging = HostStaging(ticket) if link.device.type == "cpu" else DeviceStaging(ticket, link.device)
    going: deque[tuple[int, int, Any]] = deque()

    def take() -> None:
        start, end, work = going.popleft()
        link.wait(work, "to send weights")
        staging.came(start, end)

    size, most = buckets_of(link)
    with staging:
        for start in range(0, expected, size):
            if len(going) == most:
                take()
            end = min(start + size, expected)
            going.append((start, end, link.receive(staging.window(start, end))))
        while going:
            take()
        return staging.verified()


class HostStaging:
    """The bytes of all tensors, one after another; pieces of them are checked as they come, by several threads."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._bytes = torch.empty(sum(each.num_bytes for each in ticket.tensors), dtype=torch.uint8)
        self._pool = ThreadPoolExecutor(THREADS)
        # Of each tensor, in order: its pieces, which end there.
        self._waiting = deque(self._pieces())
        self._checked: list[list[Future[tuple[int, bool]]]] = [[] for _ in ticket.tensors]

    def __enter__(self) -> HostStaging:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def window(self, start: int, end: int) -> torch.Tensor:
        return self._bytes[start:end]

    def came(self, start: int, end: int) -> None:
        while self._waiting and self._waiting[0][2] <= end:
            tensor, first, last = self._waiting.popleft()
            self._checked[tensor].append(self._pool.submit(self._check, tensor, first, last))

    def verified(self) -> list[torch.Tensor]:
        tensors, at = [], 0
        for tensor, checks in zip(self._ticket.tensors, self._checked, strict=True):
            found = [each.result() for each in checks]
            sizes = [min(PIECE_BYTES, tensor.num_bytes - start) for start in range(0, tensor.num_bytes, PIECE_BYTES)]
            refuse_checksum(self._ticket, tensor, combined([crc for crc, _ in found], sizes))
            if not all(good for _, good in found):
                raise refuse(self._ticket, f"'{tensor.name}' has numbers that are not finite")
            tensors.append(_numbers(self._bytes[at : at + tensor.num_bytes], tensor.dtype).view(tensor.shape))
            at += tensor.num_bytes
        return tensors

    def _check(self, tensor: int, start: int, end: int) -> tuple[int, bool]:
        part = self._bytes[start:end]
        return crc32(bytes_of(part)), is_finite(_numbers(part, self._ticket.tensors[tensor].dtype))

    def _pieces(self) -> list[tuple[int, int, int]]:
        pieces, at = [], 0
        for index, tensor in enumerate(self._ticket.tensors):
            end = at + tensor.num_bytes
            pieces += [(index, start, min(start + PIECE_BYTES, end)) for start in range(at, end, PIECE_BYTES)]
            at = end
        return pieces


class DeviceStaging:
    """The same in a device's memory, in rows as a block has them; checked there, once all are there."""

    def __init__(self, ticket: Ticket, device: torch.device) -> None:
        self._ticket = ticket
        self._rows = empty_rows(ticket.tensors, device)
        self._windows: dict[int, torch.Tensor] = {}

    def __enter__(self) -> DeviceStaging:
        return self

    def __exit__(self, *_: object) -> None:
        self._windows.clear()

    def window(self, start: int, end: int) -> torch.Tensor:
        self._windows[start] = torch.empty(end - start, dtype=torch.uint8, device=self._rows.device)
        return self._windows[start]

    def came(self, start: int, end: int) -> None:
        place_in(self._rows, self._ticket.tensors, start, self._windows.pop(start))

    def verified(self) -> list[torch.Tensor]:
        return verify_rows(self._ticket, self._rows)


def _numbers(part: torch.Tensor, dtype: str) -> torch.Tensor:
    """Where they do not begin where such numbers may, a copy."""
    aligned = part if part.storage_offset() % DTYPES[dtype].itemsize == 0 else part.clone()
    return aligned.view(DTYPES[dtype])


def _fill(fd: int, data: memoryview, offset: int) -> None:
    while len(data) > 0:
        count = os.preadv(fd, [data], offset)
        if count == 0:
            raise Gone("the published file is shorter than it was")
        data, offset = data[count:], offset + count
