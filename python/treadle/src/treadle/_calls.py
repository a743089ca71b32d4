"""What every call needs: its settings, what a lost connection looks like, and the waits between two tries."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from .errors import code_of
from .requests import Retry, Tls

_Reply = TypeVar("_Reply")

#: of input or of an archive in one message
piece_bytes = 2**18
_largest_message = 64 * 2**20
call_options: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _largest_message),
    ("grpc.max_send_message_length", _largest_message),
    # A connection that died without a word is found, and the call is repeated.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
]


class Backoff:
    """Waits that double, until `seconds` have gone by since it was made."""

    def __init__(self, retry: Retry, seconds: float | None = None) -> None:
        self._retry = retry
        self._wait = retry.first_wait
        self._end = asyncio.get_running_loop().time() + (retry.seconds if seconds is None else seconds)
        self.has_waited = False

    async def wait(self) -> bool:
        """False when the time is over."""
        if asyncio.get_running_loop().time() + self._wait > self._end:
            return False
        self.has_waited = True
        await asyncio.sleep(self._wait)
        self._wait = min(self._wait * 2, self._retry.longest_wait)
        return True


def is_lost(error: grpc.aio.AioRpcError) -> bool:
    """Nobody answered, or not to the end; what the service itself refused has a code, and stays refused."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and code_of(error) == ""


def decoder(reply: type[_Reply]) -> Callable[[bytes], _Reply]:
    decode: Callable[[bytes], _Reply] = reply.FromString  # type: ignore[attr-defined]
    return decode


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    def read(path: str | pathlib.Path | None) -> bytes | None:
        return None if path is None else pathlib.Path(path).read_bytes()

    return grpc.ssl_channel_credentials(read(tls.authority), read(tls.key), read(tls.certificate))
