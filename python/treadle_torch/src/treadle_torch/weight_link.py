"""Two processes of different engines that meet, on one node or on two: a trainer's, which sends, and a receiver's.

WC1 they meet on a socket of the sender's, and each proves that it has the link's secret. Strangers are turned away within some seconds, a few at
    once, and the socket listens no more once the receiver has come or the deadline has passed.
WC2 the first message of the process group proves it again: gloo and NCCL ask nobody who it is.
WC3 nothing waits for the other side beyond the link's deadline. A link that fails is closed with its group, and the next transfer makes another.

Nothing is encrypted or signed. What an eavesdropper on the way may read, and somebody on the way may alter, are the weights: only their
checksums come by Node.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import queue
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .errors import Refusal

SECRET_BYTES = 32
# Of one that connects, until it has proved who it is; and how many may be at that at once.
PROOF_SECONDS = 5.0
CANDIDATES = 8
FRAME_BYTES = 2**20
SENDER, RECEIVER = 0, 1
NAMES = ("the trainer's process", "the receiver's process")
# NCCL ends a process whose operation takes longer; this package ends the operation first.
NCCL_SLACK = 10


@dataclass(frozen=True)
class LinkSettings:
    """`listen`: an address of this host; `host`: by which others reach it. `timeout_s`: for which one side waits for the other."""

    backend: str
    listen: str
    host: str
    timeout_s: float

    @property
    def own(self) -> str:
        """Where the group's own sockets are: on any address would say no other host which one to take."""
        return self.host if self.listen in ("0.0.0.0", "::", "") else self.listen


@dataclass(frozen=True)
class Place:
    """Where a sender waits for one receiver, once. Without a port, the link is there already."""

    link: str
    host: str = ""
    port: int = 0
    secret: bytes = b""


class Late(Exception):
    """The other side has not done something in time."""


class Gone(Exception):
    """The other side has ended, or has closed the link and said why."""


class Channel:
    """The socket on which they have met: what each side says to the other before and beside the group. Closed, it is of no use any more."""

    def __init__(self, peer: socket.socket, key: bytes) -> None:
        self._socket = peer
        self._writing = threading.Lock()
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._why = ""
        self.is_closed = False
        self.key = key
        # A host that has vanished says nothing.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        threading.Thread(target=self._read, name="link", daemon=True).start()

    def say(self, **message: object) -> None:
        self._send(b"m", json.dumps(message).encode())

    def hear(self, timeout_s: float | None, what: str) -> dict[str, Any]:
        """Raises `Late` and `Gone`."""
        try:
            message = self._said.get(timeout=timeout_s)
        except queue.Empty:
            raise Late(what) from None
        if message is None:
            self._said.put(None)
            raise Gone(self._why)
        if "failed" in message:
            raise Gone(self._why)
        return message

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()
        self._send(b"v", struct.pack("<H", len(key)) + key.encode() + value)

    def find(self, keys: Sequence[str], timeout_s: float) -> list[bytes]:
        with self._changed:
            came = self._changed.wait_for(lambda: self.is_closed or all(key in self._values for key in keys), timeout_s)
            if not came:
                raise Late("to join the process group")
            if self.is_closed:
                raise Gone(self._why)
            return [self._values[key] for key in keys]

    def has(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def last_words(self) -> str:
        """What the other side has said at its end, if that is near."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed, 1)
        return self._why

    def close(self, why: str = "") -> None:
        if why and not self.is_closed:
            try:
                self.say(failed=why)
            except OSError:
                pass
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _send(self, kind: bytes, body: bytes) -> None:
        with self._writing:
            self._socket.sendall(kind + struct.pack("<I", len(body)) + body)

    def _read(self) -> None:
        try:
            while True:
                kind, size = struct.unpack("<cI", _exactly(self._socket, 5))
                if size > FRAME_BYTES:
                    break
                body = _exactly(self._socket, size)
                if kind == b"v":
                    (length,) = struct.unpack_from("<H", body)
                    with self._changed:
                        self._values[body[2 : 2 + length].decode()] = body[2 + length :]
                        self._changed.notify_all()
                else:
                    message = json.loads(body)
                    self._why = str(message.get("failed", ""))
                    self._said.put(message)
        except (OSError, ValueError, struct.error, EOFError):
            pass
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self._said.put(None)
        self._socket.close()


class ChannelStore(dist.Store):
    """What the two processes of a group tell each other to find each other: PyTorch's own stores listen to everybody."""

    def __init__(self, channel: Channel, timeout_s: float) -> None:
        super().__init__()
        self._channel, self._timeout_s = channel, timeout_s

    def set(self, key: str, value: str | bytes) -> None:
        self._channel.put(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._channel.find([key], self._timeout_s)[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._channel.find(keys, self._timeout_s)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._channel.find(keys, self._timeout_s)

    def check(self, keys: Sequence[str]) -> bool:
        return self._channel.has(keys)

    def has_extended_api(self) -> bool:
        return False

    def clone(self) -> ChannelStore:
        return self


class Link:
    """A channel and the process group of the two."""

    def __init__(self, channel: Channel, rank: int, settings: LinkSettings, device: torch.device) -> None:
        """Both make it at once. Raises `Late`, `Gone`, and what the group says."""
        self.channel = channel
        self.device = device if settings.backend == "nccl" else torch.device("cpu")
        self.rank, self.settings = rank, settings
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._agree()
        self._group = _group(settings, ChannelStore(channel, settings.timeout_s), rank)
        self._prove()

    @property
    def is_open(self) -> bool:
        return not self.channel.is_closed

    @property
    def peer(self) -> str:
        return NAMES[1 - self.rank]

    def send(self, tensor: torch.Tensor) -> Any:
        return self._group.send([tensor], 1 - self.rank, 0)

    def receive(self, tensor: torch.Tensor) -> Any:
        return self._group.recv([tensor], 1 - self.rank, 0)

    def wait(self, work: Any, what: str) -> None:
        """WC3. Raises `Late`, and what the group says."""
        limit = self.settings.timeout_s
        began = time.monotonic()
        try:
            if self.device.type == "cuda":
                while not work.is_completed():
                    if time.monotonic() - began > limit:
                        raise Late(what)
                    time.sleep(0.0005)
                work.wait()
            else:
                work.wait(timedelta(seconds=limit))
        except RuntimeError as error:
            if time.monotonic() - began >= 0.95 * limit:
                raise Late(what) from error
            raise

    def close(self, why: str = "") -> None:
        self.channel.close(why)
        group, self._group = self._group, None
        if group is not None and self.device.type == "cuda":
            group.abort()

    def _agree(self) -> None:
        uuid = str(torch.cuda.get_device_properties(self.device).uuid) if self.device.type == "cuda" else ""
        self.channel.say(backend=self.settings.backend, device=uuid)
        other = self.channel.hear(self.settings.timeout_s, "to say by what it sends weights")
        if other.get("backend") != self.settings.backend:
            raise Refusal("config.invalid", f"engine.collective is '{self.settings.backend}' here and '{other.get('backend')}' in {self.peer}; give both the same")
        if uuid and other.get("device") == uuid:
            raise Refusal("config.invalid", "NCCL joins no two processes on one device; set engine.weightsBy to 'device', or engine.collective to 'gloo'")

    def _prove(self) -> None:
        """WC2: the receiver first, since it is the sender who has something to lose."""
        own, other = (_code(self.channel.key, role) for role in (self.rank, 1 - self.rank))

        def show() -> None:
            self.wait(self.send(torch.frombuffer(bytearray(own), dtype=torch.uint8).to(self.device)), "to take the group's first message")

        def see() -> None:
            shown = torch.zeros(len(other), dtype=torch.uint8, device=self.device)
            self.wait(self.receive(shown), "to send the group's first message")
            if not hmac.compare_digest(bytes(shown.tolist()), other):
                raise Gone("somebody else has joined the process group in its place")

        for act in (see, show) if self.rank == SENDER else (show, see):
            act()


def open_place(settings: LinkSettings) -> tuple[Place, socket.socket]:
    family = socket.getaddrinfo(settings.listen or "0.0.0.0", 0, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((settings.listen, 0), family=family, backlog=CANDIDATES)
    return Place(secrets.token_hex(8), settings.host, listener.getsockname()[1], secrets.token_bytes(SECRET_BYTES)), listener


def accept(listener: socket.socket, place: Place, timeout_s: float) -> Channel:
    """WC1. Raises `Late`. The listener is closed."""
    until = time.monotonic() + timeout_s
    proved: queue.SimpleQueue[Channel] = queue.SimpleQueue()
    seats = threading.Semaphore(CANDIDATES)
    listener.settimeout(0.05)

    def look(candidate: socket.socket) -> None:
        try:
            proved.put(_welcome(candidate, place))
        except (OSError, EOFError, Gone):
            candidate.close()
        finally:
            seats.release()

    try:
        while time.monotonic() < until:
            if not proved.empty():
                break
            if not seats.acquire(timeout=0.05):
                continue
            try:
                candidate, _ = listener.accept()
            except TimeoutError:
                seats.release()
                continue
            threading.Thread(target=look, args=(candidate,), name="link", daemon=True).start()
    finally:
        listener.close()
    try:
        return proved.get_nowait()
    except queue.Empty:
        raise Late("to come") from None


def connect(place: Place, timeout_s: float) -> Channel:
    """WC1. Raises `Late` and `Gone`."""
    try:
        peer = socket.create_connection((place.host, place.port), timeout_s)
    except TimeoutError:
        raise Late(f"to accept at '{place.host}:{place.port}'") from None
    except OSError as error:
        raise Gone(f"nobody listens at '{place.host}:{place.port}': {error}") from error
    try:
        limit = _Limit(peer, timeout_s)
        theirs = limit.read(SECRET_BYTES)
        own = secrets.token_bytes(SECRET_BYTES)
        key = _key(place, theirs, own)
        peer.sendall(own + _code(key, b"receiver"))
        if not hmac.compare_digest(limit.read(SECRET_BYTES), _code(key, b"sender")):
            raise Gone("whoever listens there has not the link's secret")
        peer.settimeout(None)
        return Channel(peer, key)
    except TimeoutError:
        peer.close()
        raise Late("to prove who it is") from None
    except (OSError, EOFError) as error:
        peer.close()
        raise Gone("it has refused the link's secret, or has ended") from error


def _welcome(peer: socket.socket, place: Place) -> Channel:
    limit = _Limit(peer, PROOF_SECONDS)
    own = secrets.token_bytes(SECRET_BYTES)
    peer.sendall(own)
    key = _key(place, own, limit.read(SECRET_BYTES))
    if not hmac.compare_digest(limit.read(SECRET_BYTES), _code(key, b"receiver")):
        raise Gone("it has not the link's secret")
    peer.sendall(_code(key, b"sender"))
    peer.settimeout(None)
    return Channel(peer, key)


class _Limit:
    """Reads within a time in all: one that sends a byte now and then is late, too."""

    def __init__(self, peer: socket.socket, seconds: float) -> None:
        self._peer, self._until = peer, time.monotonic() + seconds
        peer.settimeout(seconds)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._peer.settimeout(left)
            data += _some(self._peer, count - len(data))
        return data


def _key(place: Place, sender: bytes, receiver: bytes) -> bytes:
    return hmac.digest(place.secret, place.link.encode() + sender + receiver, hashlib.sha256)


def _code(key: bytes, role: bytes | int) -> bytes:
    text = role if isinstance(role, bytes) else b"group-%d" % role
    return hmac.digest(key, text, hashlib.sha256)


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += _some(peer, count - len(data))
    return data


def _some(peer: socket.socket, count: int) -> bytes:
    data = peer.recv(count)
    if not data:
        raise EOFError
    return data


def _group(settings: LinkSettings, store: dist.Store, rank: int) -> Any:
    """Made here and not by `init_process_group`, of which a process has one: that of its shards."""
    timeout = timedelta(seconds=settings.timeout_s)
    if settings.backend == "gloo":
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=settings.own)]
        options._timeout = timeout
        options._threads = 2
        return dist.ProcessGroupGloo(store, rank, 2, options)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = NCCL_SLACK * timeout
    return dist.ProcessGroupNCCL(store, rank, 2, options)


def check_backend(backend: str, device: torch.device) -> None:
    """Refuses with `config.invalid`, before anything is made."""
    if backend == "nccl" and device.type != "cuda":
        raise Refusal("config.invalid", f"engine.collective 'nccl' joins CUDA devices, and this engine computes on '{device}'; set it to 'gloo'")
    available = dist.is_gloo_available() if backend == "gloo" else dist.is_nccl_available()
    if not available:
        raise Refusal("config.invalid", f"this build of PyTorch {torch.__version__} has no '{backend}'; set engine.collective to 'off', or take another build")


def interface_of(address: str) -> str | None:
    """By name, as NCCL asks for it."""
    import fcntl

    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", os.fsencode(name)[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
