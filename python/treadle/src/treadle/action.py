"""A command or a request of a client: its events as they come, across lost connections, and its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc.aio

from ._calls import Backoff, is_lost, piece_bytes
from ._generated import actions_pb2 as messages
from .errors import ActionsError, CommandFailed, RequestFailed
from .requests import Retry, bytes_of
from .results import Event, Finished, Output, Result, Started, event_of

if TYPE_CHECKING:
    from .aio import AsyncActions

#: between two looks whether a command has read its input
_unread_seconds = 0.05


class AsyncAction:
    """A command or a request that was queued: iterate it for its events as they come, or await `result`. One of the two, once."""

    def __init__(self, actions: AsyncActions, request: messages.SubmitRequest, repeat_seconds: float) -> None:
        self.name = request.action
        self._actions = actions
        self._request = request
        self._repeat_seconds = repeat_seconds
        self._sent = 0
        self._sending = asyncio.Lock()
        self._call: Any = actions._stream("Submit", request, messages.ActionEvent)
        self._events = self._follow()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def result(self, *, check: bool = False) -> Result:
        """Throws ActionsError where it did not run to an end of its own, and with `check` where it did not succeed."""
        started = Started({}, (), 0, "")
        printed: list[Output] = []
        finished: Finished | None = None
        try:
            async for event in self._events:
                if isinstance(event, Started):
                    started = event
                    printed.clear()
                elif isinstance(event, Output):
                    printed.append(event)
                elif isinstance(event, Finished):
                    finished = event
        finally:
            await self._events.aclose()
        if finished is None:
            raise ActionsError("the action's events ended before it did; submit it again", status="UNKNOWN")
        result = Result(
            **vars(finished),
            stdout=b"".join(one.stdout for one in printed),
            stderr=b"".join(one.stderr for one in printed),
            allocation=started.allocation,
            cores=started.cores,
            why=started.why,
            host=started.host,
        )
        if check and not result.succeeded:
            raise RequestFailed(result) if self._request.service else CommandFailed(result)
        return result

    async def cancel(self, *, retry: Retry | None = None) -> bool:
        """False where it has ended already."""
        request = messages.CancelRequest(action=self.name)
        return (await self._actions._call("Cancel", request, messages.CancelReply, retry=retry)).found

    async def send(self, data: bytes | str) -> None:
        """To the input of one that is `interactive`. Waits while the command does not read, and returns before it has."""
        left = memoryview(bytes_of(data))
        async with self._sending:
            while len(left) > 0:
                piece = bytes(left[:piece_bytes])
                await self._send(piece, end=False)
                left = left[len(piece) :]

    async def end_input(self) -> None:
        async with self._sending:
            await self._send(b"", end=True)

    async def signal(self, name: str) -> bool:
        """INT, TERM, KILL, HUP, QUIT, USR1, USR2, STOP or CONT, to all of its processes. False where it does not run."""
        request = messages.SignalRequest(action=self.name, signal=name)
        return (await self._actions._call("Signal", request, messages.SignalReply)).found

    async def _send(self, data: bytes, *, end: bool) -> None:
        request = messages.SendInputRequest(action=self.name, data=data, offset=self._sent, end=end)
        while True:
            try:
                await self._actions._call("SendInput", request, messages.SendInputReply)
                break
            except ActionsError as error:
                if error.status != "RESOURCE_EXHAUSTED":
                    raise
                await asyncio.sleep(_unread_seconds)
        self._sent += len(data)

    async def _follow(self) -> AsyncGenerator[Event, None]:
        seen = 0
        retry = self._actions._retry
        backoff = Backoff(retry, min(retry.seconds, self._repeat_seconds))
        has_ended = False
        try:
            while True:
                try:
                    number = 0
                    async for message in self._call:
                        number += 1
                        if number <= seen:
                            continue
                        seen = number
                        backoff = Backoff(retry, min(retry.seconds, self._repeat_seconds))
                        event = event_of(message)
                        has_ended = isinstance(event, Finished)
                        yield event
                    has_ended = True
                    return
                except grpc.aio.AioRpcError as error:
                    if not is_lost(error) or not await backoff.wait():
                        has_ended = not is_lost(error)
                        raise ActionsError.of(error) from error
                self._call = self._actions._stream("Submit", self._request, messages.ActionEvent)
        finally:
            self._call.cancel()
            if not has_ended:
                # The service takes the end of the call for a lost connection, and would wait for a repeat.
                with suppress(ActionsError):
                    await asyncio.shield(asyncio.ensure_future(self.cancel(retry=Retry(seconds=0))))
