"""The asyncio client. `treadle` itself has the same without asyncio.

Delivery: a command runs at most once, and its result arrives once or an error says why not. Every request carries an
idempotency key, so that one whose connection was lost is repeated and joins what the first began; the service replays its
events, and those that were seen are skipped. What is not read is not asked for: gRPC's flow control makes the service keep it.
"""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc.aio

from ._generated import actions_pb2 as messages
from ._calls import Backoff, call_options, credentials, decoder, is_lost, piece_bytes
from .action import AsyncAction
from .archive import Limits, pack, too_large, unpack
from .errors import ActionsError
from .leases import AsyncLease, AsyncQuota
from .requests import (
    Amount,
    Elasticity,
    Retry,
    Tls,
    amount_of,
    body_of,
    bytes_of,
    elasticity_of,
    key_of,
    program_of,
)
from .results import Result

_Reply = TypeVar("_Reply")

_longest_transfer = 3600.0
#: for which a service knows a request without a trajectory after its connection was lost, unless it was told less
_request_repeat_seconds = 60.0


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
            grpc.aio.insecure_channel(target, options=call_options)
            if tls is None
            else grpc.aio.secure_channel(target, credentials(tls), options=call_options)
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
        disk_bytes: int = 0,
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
            disk_bytes=disk_bytes,
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

    def quota(self, name: str, units: float = 1, **options: Any) -> AsyncQuota:
        """``async with actions.quota("judge") as lease:`` holds units of a quota for a call of the client's own.

        `options` are those of `acquire`. What the call raises from within tells the service of a refusal (429, 503) and its
        Retry-After, where it is an error of httpx, requests, aiohttp or urllib; `lease.refused` tells it otherwise.
        """
        return AsyncQuota(self.acquire({name: units}, **options))

    def submit_request(
        self,
        service: str,
        path: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        body: bytes | str = b"",
        json: Any = None,
        cost: Mapping[str, Amount] | None = None,
        kind: str = "",
        elasticity: Elasticity | None = None,
        duration: float | None = None,
        priority: float = 0.0,
        retries: int = 0,
        deadline_seconds: float = 0.0,
        timeout_seconds: float = 0.0,
        max_output_bytes: int = 0,
        trajectory: AsyncTrajectory | None = None,
    ) -> AsyncAction:
        """Queues a request to a model service of the server's configuration, and returns before it is sent.

        The server has the service restored on devices, sends the request there, and passes the answer's body on as the action's
        output while it comes. `json` is sent in place of `body`. Without `cost` the service gets as many devices as are worth it
        of those that it runs on. `retries` are for a service that ended, and for 429, 500, 502, 503 and 504. `kind`, where it is
        empty, is the service's name; the others are as of `AsyncTrajectory.submit`. A model of an external API
        (`openai.upstreams`) may be named in place of a service: it takes units of that one's quota. 429 and 503 are then tried
        again as often as the configuration says; `retries` are for 500, 502, 504 and answers that never came. The two are counted
        apart. A failed request may have been charged, and another attempt is charged again.
        """
        sent, named = body_of(body, json, headers)
        units = cost or {}
        name = uuid.uuid4().hex
        request = messages.SubmitRequest(
            trajectory="" if trajectory is None else trajectory.name,
            tenant=self.tenant,
            service=service,
            request=messages.ServiceRequest(method=method, path=path, headers=named, body=sent),
            kind=kind,
            cost={resource: amount_of(amount) for resource, amount in units.items()},
            key=key_of(units),
            elasticity=elasticity_of(elasticity),
            duration_seconds=duration,
            priority=priority,
            deadline_ms=deadline_seconds * 1000,
            retries=retries,
            timeout_ms=timeout_seconds * 1000,
            max_output_bytes=max_output_bytes,
            action=name,
            idempotency_key=name,
        )
        repeat_seconds = _request_repeat_seconds if trajectory is None else trajectory._repeat_seconds
        return AsyncAction(self, request, repeat_seconds)

    async def request(self, service: str, path: str, *, check: bool = False, **options: Any) -> Result:
        """`submit_request`, and its result; with `check`, RequestFailed where it was not answered with 200 to 299."""
        return await self.submit_request(service, path, **options).result(check=check)

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
        """`seconds` is for a call that is long; `fine` as of `_retried`, which then answers nothing."""
        call: Any = self._channel.unary_unary(
            f"/treadle.actions.v1.Actions/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=decoder(reply),
        )

        async def once() -> _Reply:
            answer: _Reply = await call(request, timeout=seconds or self._call_seconds, metadata=self._metadata)
            return answer

        return await self._retried(once, fine=None if fine == "" else (fine, reply), retry=retry)

    async def _send(
        self, method: str, requests: Callable[[], AsyncIterator[Any]], reply: type[_Reply], *, seconds: float
    ) -> _Reply:
        """Many requests, for one reply; all of them again where the connection was lost."""
        call: Any = self._channel.stream_unary(
            f"/treadle.actions.v1.Actions/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=decoder(reply),
        )

        async def once() -> _Reply:
            answer: _Reply = await call(requests(), timeout=seconds, metadata=self._metadata)
            return answer

        return await self._retried(once)

    async def _retried(
        self,
        once: Callable[[], Awaitable[_Reply]],
        *,
        fine: tuple[str, type[_Reply]] | None = None,
        retry: Retry | None = None,
    ) -> _Reply:
        """`fine` is the status by which a repeat learns that the first try took effect, and what it then answers."""
        backoff = Backoff(retry or self._retry)
        while True:
            try:
                return await once()
            except grpc.aio.AioRpcError as error:
                if fine is not None and backoff.has_waited and error.code().name == fine[0]:
                    return fine[1]()
                if not is_lost(error) or not await backoff.wait():
                    raise ActionsError.of(error) from error

    def _stream(self, method: str, request: Any, reply: type[_Reply], *, seconds: float | None = None) -> Any:
        call: Any = self._channel.unary_stream(
            f"/treadle.actions.v1.Actions/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=decoder(reply),
        )
        return call(request, timeout=seconds, metadata=self._metadata)


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
        cpu: Amount | None = None,
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

        `cpu` is the cores, as ``1`` or ``Between(1, 8)``. Without it they are one; or, where the service has a stored profile of the
        `kind` and the command has `{parallel}`, as many as that has measured. `cost` is of other resources by name. `duration` is in seconds on
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
        cpu: Amount | None = None,
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

    def submit_request(self, service: str, path: str, **options: Any) -> AsyncAction:
        """As `AsyncActions.submit_request`: an action of this trajectory, which ends with it and needs no sandbox."""
        return self.actions.submit_request(service, path, trajectory=self, **options)

    async def request(self, service: str, path: str, *, check: bool = False, **options: Any) -> Result:
        """`submit_request`, and its result; with `check`, RequestFailed where it was not answered with 200 to 299."""
        return await self.submit_request(service, path, **options).result(check=check)

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
        request = messages.WriteFileRequest(trajectory=self.name, path=path, data=bytes_of(data))
        await self.actions._call("WriteFile", request, messages.WriteFileReply)

    async def read_file(self, path: str) -> bytes:
        """At most 32 MiB; `download` takes more."""
        request = messages.ReadFileRequest(trajectory=self.name, path=path)
        return (await self.actions._call("ReadFile", request, messages.ReadFileReply)).data

    async def upload(self, source: str | pathlib.Path, target: str) -> None:
        """A file or a folder of this machine, with modes and links; `target` becomes its path. The sandbox needs tar.

        Links that lead out of the folder, devices and pipes are refused. Nothing is written where it fails, but into a folder
        that is there already, which is joined.
        """
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(pack, pathlib.Path(source), archive)

            async def pieces() -> AsyncIterator[messages.UploadRequest]:
                archive.seek(0)
                yield messages.UploadRequest(trajectory=self.name, path=target)
                while piece := await asyncio.to_thread(archive.read, piece_bytes):
                    yield messages.UploadRequest(data=piece)

            await self.actions._send("Upload", pieces, messages.UploadReply, seconds=_longest_transfer)

    async def download(self, source: str, target: str | pathlib.Path, *, limits: Limits = Limits()) -> None:
        """A file or a folder of the sandbox, which becomes `target`; what is refused of an upload is refused here, too.

        It is checked by the service and, whatever that let through, here. A folder that is there already is joined.
        """
        request = messages.DownloadRequest(trajectory=self.name, path=source)
        with tempfile.TemporaryFile() as archive:

            async def receive() -> None:
                archive.seek(0)
                archive.truncate()
                call = self.actions._stream("Download", request, messages.DownloadReply, seconds=_longest_transfer)
                try:
                    async for reply in call:
                        if archive.tell() + len(reply.data) > limits.archive_bytes:
                            raise too_large(limits)
                        await asyncio.to_thread(archive.write, reply.data)
                finally:
                    call.cancel()

            await self.actions._retried(receive)
            await asyncio.to_thread(unpack, archive, pathlib.Path(target), limits)


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
