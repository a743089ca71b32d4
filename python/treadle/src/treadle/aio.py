"""The asyncio client. `treadle` itself has the same without asyncio.

Delivery: a command runs at most once, and its result arrives once or an error says why not. Every request carries an
idempotency key, so that one whose connection was lost is repeated and joins what the first began; the service replays its
events, and those that were seen are skipped. What is not read is not asked for: gRPC's flow control makes the service keep it.
"""

from __future__ import annotations

import asyncio
import io
import pathlib
import tarfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from ._generated import actions_pb2 as messages
from .errors import ActionsError, CommandFailed, code_of
from .requests import (
    Amount,
    Elasticity,
    Retry,
    Tls,
    amount_of,
    elasticity_of,
    key_of,
    program_of,
)
from .results import Event, Finished, Output, Result, Started, event_of

_Reply = TypeVar("_Reply")

_largest_message = 64 * 2**20
#: of one file that is written or read, with room for the rest of its message
_largest_piece = 16 * 2**20
#: of input in one message
_input_piece = 2**18
#: between two looks whether a command has read its input
_unread_seconds = 0.05
_options: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _largest_message),
    ("grpc.max_send_message_length", _largest_message),
    # A connection that died without a word is found, and the call is repeated.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
]


class AsyncActions:
    """A connection to `treadle actions serve`, of the event loop in which it is made.

    `target` is ``host:port`` or ``unix:/path``. `token` says which tenant this is, where the service has tokens; elsewhere
    `tenant` does. `call_seconds` bounds calls that are not actions, such as the opening of a trajectory.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        tenant: str = "",
        call_seconds: float = 60.0,
        retry: Retry = Retry(),
    ) -> None:
        self.tenant = tenant
        self._call_seconds = call_seconds
        self._retry = retry
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._channel = (
            grpc.aio.insecure_channel(target, options=_options)
            if tls is None
            else grpc.aio.secure_channel(target, _credentials(tls), options=_options)
        )

    async def __aenter__(self) -> AsyncActions:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends its calls; what they run ends with them. Trajectories stay until they are closed, or idle for too long."""
        await self._channel.close()

    async def open_trajectory(
        self,
        name: str | None = None,
        *,
        memory_bytes: int = 0,
        max_processes: int = 0,
        network: bool = False,
        prepare: Sequence[Sequence[str]] = (),
        restorable: bool = False,
        image: str = "",
        user: str = "",
        working_folder: str = "",
        environment: Mapping[str, str] | None = None,
        snapshot: AsyncSnapshot | str = "",
    ) -> AsyncTrajectory:
        """Creates an environment; its sandbox starts with its first action. Fields are those of `OpenTrajectoryRequest`."""
        key = uuid.uuid4().hex
        request = messages.OpenTrajectoryRequest(
            trajectory=name or key,
            tenant=self.tenant,
            memory_bytes=memory_bytes,
            max_processes=max_processes,
            network=network,
            prepare=[messages.Command(words=words) for words in prepare],
            restorable=restorable,
            image=image,
            user=user,
            working_folder=working_folder,
            environment=environment,
            idempotency_key=key,
            snapshot=snapshot if isinstance(snapshot, str) else snapshot.name,
        )
        reply = await self._call("OpenTrajectory", request, messages.OpenTrajectoryReply)
        return AsyncTrajectory(self, reply.trajectory, reply.repeat_seconds)

    async def acquire(
        self,
        cost: Mapping[str, Amount],
        *,
        kind: str = "lease",
        elasticity: Elasticity | None = None,
        duration: float | None = None,
        priority: float = 0.0,
        deadline_seconds: float = 0.0,
        service: str = "",
    ) -> AsyncLease:
        """Waits for units of what the client uses itself: a quota, or devices with a model service on them."""
        request = messages.AcquireRequest(
            tenant=self.tenant,
            kind=kind,
            cost={name: amount_of(amount) for name, amount in cost.items()},
            key=key_of(cost),
            elasticity=elasticity_of(elasticity),
            duration_seconds=duration,
            priority=priority,
            deadline_ms=deadline_seconds * 1000,
            service=service,
            lease=uuid.uuid4().hex,
        )
        call: Any = self._stream("Acquire", request, messages.AcquireEvent)
        try:
            while True:
                event = await call.read()
                if not isinstance(event, messages.AcquireEvent):
                    raise ActionsError("the call ended before units were granted; acquire again", status="UNKNOWN")
                if event.WhichOneof("event") == "granted":
                    return AsyncLease(self, request.lease, event.granted, call)
        except grpc.aio.AioRpcError as error:
            raise ActionsError.of(error) from error
        except BaseException:
            call.cancel()
            raise

    async def statistics(self) -> messages.GetStatisticsReply:
        """Completion times by kind, units over time, and the last decisions, of this tenant."""
        return await self._call("GetStatistics", messages.GetStatisticsRequest(), messages.GetStatisticsReply)

    async def _call(
        self,
        method: str,
        request: Any,
        reply: type[_Reply],
        *,
        fine: str = "",
        retry: Retry | None = None,
        seconds: float = 0.0,
    ) -> _Reply:
        """`fine` is the status by which a repeat learns that the first try took effect; `seconds` is for a call that is long."""
        call: Any = self._channel.unary_unary(
            f"/treadle.actions.v1.Actions/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=_decoder(reply),
        )
        backoff = _Backoff(retry or self._retry)
        while True:
            try:
                answer: _Reply = await call(request, timeout=seconds or self._call_seconds, metadata=self._metadata)
                return answer
            except grpc.aio.AioRpcError as error:
                if fine != "" and backoff.has_waited and error.code().name == fine:
                    return reply()
                if not _is_lost(error) or not await backoff.wait():
                    raise ActionsError.of(error) from error

    def _stream(self, method: str, request: Any, reply: type[_Reply]) -> Any:
        call: Any = self._channel.unary_stream(
            f"/treadle.actions.v1.Actions/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=_decoder(reply),
        )
        return call(request, metadata=self._metadata)


class AsyncTrajectory:
    """An environment: its files stay from action to action, its processes do not."""

    def __init__(self, actions: AsyncActions, name: str, repeat_seconds: float) -> None:
        self.actions = actions
        self.name = name
        self._repeat_seconds = repeat_seconds

    async def __aenter__(self) -> AsyncTrajectory:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels its actions and removes its environment."""
        request = messages.CloseTrajectoryRequest(trajectory=self.name)
        await self.actions._call("CloseTrajectory", request, messages.CloseTrajectoryReply, fine="NOT_FOUND")

    def submit(
        self,
        command: Sequence[str],
        *,
        cpu: Amount | None = 1,
        cost: Mapping[str, Amount] | None = None,
        kind: str | None = None,
        elasticity: Elasticity | None = None,
        duration: float | None = None,
        priority: float = 0.0,
        retries: int = 0,
        deadline_seconds: float = 0.0,
        timeout_seconds: float = 0.0,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        max_output_bytes: int = 0,
        interactive: bool = False,
    ) -> AsyncAction:
        """Queues a command now, and returns before it runs.

        `cpu` is the cores, as ``1`` or ``Between(1, 8)``; `cost` is of other resources by name. `duration` is in seconds on
        one unit, and learned by `kind` when absent. `deadline_seconds` bounds the whole, queueing included,
        `timeout_seconds` the execution alone; 0 is none for the first, the service's default of 60 for the second. The
        command finds its units in TREADLE_UNITS_CPU, and in `{parallel}`, where its cost varies. The input of one that is
        `interactive` goes on after `stdin`, with `AsyncAction.send`, until `end_input`.
        """
        return self._submit(
            command,
            cpu=cpu,
            cost=cost,
            kind=kind or program_of(command),
            elasticity=elasticity,
            duration=duration,
            priority=priority,
            retries=retries,
            deadline_seconds=deadline_seconds,
            timeout_seconds=timeout_seconds,
            environment=environment,
            stdin=stdin,
            max_output_bytes=max_output_bytes,
            interactive=interactive,
        )

    def _submit(
        self,
        command: Sequence[str],
        *,
        kind: str,
        cpu: Amount | None = 1,
        cost: Mapping[str, Amount] | None = None,
        elasticity: Elasticity | None = None,
        duration: float | None = None,
        priority: float = 0.0,
        retries: int = 0,
        deadline_seconds: float = 0.0,
        timeout_seconds: float = 0.0,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        max_output_bytes: int = 0,
        interactive: bool = False,
        session: str = "",
    ) -> AsyncAction:
        units: dict[str, Amount] = {**({} if cpu is None else {"cpu": cpu}), **(cost or {})}
        name = uuid.uuid4().hex
        request = messages.SubmitRequest(
            trajectory=self.name,
            kind=kind,
            cost={resource: amount_of(amount) for resource, amount in units.items()},
            key=key_of(units),
            elasticity=elasticity_of(elasticity),
            duration_seconds=duration,
            priority=priority,
            deadline_ms=deadline_seconds * 1000,
            retries=retries,
            command=command,
            environment=environment,
            stdin=stdin,
            timeout_ms=timeout_seconds * 1000,
            max_output_bytes=max_output_bytes,
            action=name,
            idempotency_key=name,
            session=session,
            input=interactive,
        )
        return AsyncAction(self.actions, request, self._repeat_seconds)

    async def run(self, command: Sequence[str], *, check: bool = False, **options: Any) -> Result:
        """`submit`, and its result; with `check`, CommandFailed where it did not exit with 0."""
        return await self.submit(command, **options).result(check=check)

    async def open_session(self, name: str = "main") -> AsyncSession:
        """A bash whose variables, functions, options and folder stay from command to command. A trajectory may have several."""
        request = messages.OpenSessionRequest(trajectory=self.name, session=name, idempotency_key=uuid.uuid4().hex)
        await self.actions._call("OpenSession", request, messages.OpenSessionReply)
        return AsyncSession(self, name)

    def session(self, name: str = "main") -> AsyncSession:
        """One that is open: by another client, or since its trajectory began from a snapshot."""
        return AsyncSession(self, name)

    async def snapshot(self, name: str | None = None) -> AsyncSnapshot:
        """A copy of its files and sessions, from which `open_trajectory(snapshot=…)` begins. Refused while a command runs."""
        key = uuid.uuid4().hex
        request = messages.TakeSnapshotRequest(trajectory=self.name, snapshot=name or key, idempotency_key=key)
        reply = await self.actions._call("TakeSnapshot", request, messages.TakeSnapshotReply, seconds=3600.0)
        return AsyncSnapshot(self.actions, reply.snapshot, reply.size_bytes)

    async def fork(self, name: str | None = None, **options: Any) -> AsyncTrajectory:
        """Another trajectory with a copy of its files and sessions. `options` are those of `AsyncActions.open_trajectory`."""
        async with await self.snapshot() as snapshot:
            return await self.actions.open_trajectory(name, snapshot=snapshot, **options)

    async def write_file(self, path: str, data: bytes | str) -> None:
        """`path` is relative to the working folder; its folders are made. At most some 60 MiB; `upload` takes more."""
        request = messages.WriteFileRequest(trajectory=self.name, path=path, data=_bytes(data))
        await self.actions._call("WriteFile", request, messages.WriteFileReply)

    async def read_file(self, path: str) -> bytes:
        """At most 32 MiB; `download` takes twice that."""
        request = messages.ReadFileRequest(trajectory=self.name, path=path)
        return (await self.actions._call("ReadFile", request, messages.ReadFileReply)).data

    async def upload(self, source: str | pathlib.Path, target: str) -> None:
        """A file or a folder of this machine, with modes and links; `target` becomes its path. The sandbox needs tar."""
        archive = await asyncio.to_thread(_archive_of, pathlib.Path(source))
        kept = f".treadle-upload-{uuid.uuid4().hex}"
        pieces = [archive[at : at + _largest_piece] for at in range(0, len(archive), _largest_piece)]
        for number, piece in enumerate(pieces):
            await self.write_file(f"{kept}/{number:06}", piece)
        script = (
            'set -e; kept=$1 target=$2; mkdir -p -- "$kept/in" "$(dirname -- "$target")"; '
            'cat "$kept"/[0-9]* | tar -x --no-same-owner -C "$kept/in" -f -; '
            'if [ -d "$kept/in/it" ] && [ ! -L "$kept/in/it" ]; then mkdir -p -- "$target"; cp -a "$kept/in/it/." "$target/"; '
            'else cp -a "$kept/in/it" "$target"; fi; rm -rf -- "$kept"'
        )
        await self.run(["sh", "-c", script, "sh", kept, target], kind="upload", timeout_seconds=3600, check=True)

    async def download(self, source: str, target: str | pathlib.Path) -> None:
        """A file or a folder of the sandbox, at most 64 MiB; nothing that its archive names leads out of `target`."""
        script = 'cd -- "$(dirname -- "$1")" && tar -c -f - -- "$(basename -- "$1")"'
        action = self.submit(
            ["sh", "-c", script, "sh", source], kind="download", timeout_seconds=3600, max_output_bytes=_largest_message
        )
        result = await action.result(check=True)
        await asyncio.to_thread(_unpack, result.stdout, pathlib.Path(target))


class AsyncSnapshot:
    """A copy of a trajectory's files and sessions. Dropped at the end of `async with`; what began from it lives on."""

    def __init__(self, actions: AsyncActions, name: str, size_bytes: int) -> None:
        self.actions = actions
        self.name = name
        #: that it takes of the service's disk
        self.size_bytes = size_bytes

    async def __aenter__(self) -> AsyncSnapshot:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()

    async def drop(self) -> None:
        request = messages.DropSnapshotRequest(snapshot=self.name)
        await self.actions._call("DropSnapshot", request, messages.DropSnapshotReply, fine="NOT_FOUND")


class AsyncSession:
    """A named shell of a trajectory. Each command is an action: it holds its cores while it runs, and nothing is held between two.

    It runs one command at a time. A command's processes end with it; what has to live longer, such as a server, is an action
    of its own (`AsyncTrajectory.submit`).
    """

    def __init__(self, trajectory: AsyncTrajectory, name: str) -> None:
        self.trajectory = trajectory
        self.name = name

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def submit(self, text: str, *, kind: str = "session", **options: Any) -> AsyncAction:
        """Text of bash. `options` are those of `AsyncTrajectory.submit`, but for `environment`: export in the session."""
        return self.trajectory._submit([text], kind=kind, session=self.name, **options)

    async def run(self, text: str, *, check: bool = False, **options: Any) -> Result:
        """`submit`, and its result; with `check`, CommandFailed where it did not exit with 0."""
        return await self.submit(text, **options).result(check=check)

    async def close(self) -> None:
        """Forgets its state. Its files and those of its commands stay."""
        request = messages.CloseSessionRequest(trajectory=self.trajectory.name, session=self.name)
        await self.trajectory.actions._call("CloseSession", request, messages.CloseSessionReply)


class AsyncAction:
    """A command that was queued: iterate it for its events as they come, or await `result`. One of the two, once."""

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
        """Throws ActionsError where it did not run to an end of its own, and with `check` where it did not exit with 0."""
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
        )
        if check and not result.succeeded:
            raise CommandFailed(result)
        return result

    async def cancel(self, *, retry: Retry | None = None) -> bool:
        """False where it has ended already."""
        request = messages.CancelRequest(action=self.name)
        return (await self._actions._call("Cancel", request, messages.CancelReply, retry=retry)).found

    async def send(self, data: bytes | str) -> None:
        """To the input of one that is `interactive`. Waits while the command does not read, and returns before it has."""
        left = memoryview(_bytes(data))
        async with self._sending:
            while len(left) > 0:
                piece = bytes(left[:_input_piece])
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
        backoff = _Backoff(retry, min(retry.seconds, self._repeat_seconds))
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
                        backoff = _Backoff(retry, min(retry.seconds, self._repeat_seconds))
                        event = event_of(message)
                        has_ended = isinstance(event, Finished)
                        yield event
                    has_ended = True
                    return
                except grpc.aio.AioRpcError as error:
                    if not _is_lost(error) or not await backoff.wait():
                        has_ended = not _is_lost(error)
                        raise ActionsError.of(error) from error
                self._call = self._actions._stream("Submit", self._request, messages.ActionEvent)
        finally:
            self._call.cancel()
            if not has_ended:
                # The service takes the end of the call for a lost connection, and would wait for a repeat.
                with suppress(ActionsError):
                    await asyncio.shield(asyncio.ensure_future(self.cancel(retry=Retry(seconds=0))))


class AsyncLease:
    """Units that the client holds; `url` is where the service answers, if it asked for one. Released at the end of `async with`."""

    def __init__(self, actions: AsyncActions, name: str, granted: messages.LeaseGranted, call: Any) -> None:
        self.name = name
        self.allocation: Mapping[str, float] = dict(granted.allocation)
        self.url = granted.url
        self.why = granted.why
        self._actions = actions
        self._call = call
        self._is_released = False

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def release(self, *, http_status: int = 0, retry_after: str = "") -> None:
        """Gives the units back. 429 and 503 of the client's own call, with its Retry-After, stop the quota for everybody."""
        if self._is_released:
            return
        self._is_released = True
        request = messages.ReleaseRequest(lease=self.name, http_status=http_status, retry_after=retry_after)
        try:
            await self._actions._call("Release", request, messages.ReleaseReply, fine="NOT_FOUND")
        finally:
            self._call.cancel()


class _Backoff:
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


def _is_lost(error: grpc.aio.AioRpcError) -> bool:
    """Nobody answered, or not to the end; what the service itself refused has a code, and stays refused."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and code_of(error) == ""


def _decoder(reply: type[_Reply]) -> Callable[[bytes], _Reply]:
    decode: Callable[[bytes], _Reply] = reply.FromString  # type: ignore[attr-defined]
    return decode


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    def read(path: str | pathlib.Path | None) -> bytes | None:
        return None if path is None else pathlib.Path(path).read_bytes()

    return grpc.ssl_channel_credentials(read(tls.authority), read(tls.key), read(tls.certificate))


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _archive_of(source: pathlib.Path) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(source, arcname="it")
    return archive.getvalue()


def _unpack(archive: bytes, target: pathlib.Path) -> None:
    """The archive's one top entry becomes `target`; names and links that lead out of it are refused."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        top = members[0].name
        if members[0].isfile() and len(members) == 1:
            content = tar.extractfile(members[0])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(b"" if content is None else content.read())
            return
        target.mkdir(parents=True, exist_ok=True)
        for member in members:
            member.name = str(pathlib.PurePosixPath(member.name).relative_to(top))
            if member.islnk():
                member.linkname = str(pathlib.PurePosixPath(member.linkname).relative_to(top))
        tar.extractall(target, members, filter="data")
