"""The plain client: `treadle.aio` on an event loop in a thread of its own. It may be used by several threads at once."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ._generated import actions_pb2 as messages
from .action import AsyncAction
from .aio import AsyncActions, AsyncSession, AsyncSnapshot, AsyncTrajectory
from .archive import Limits
from .leases import AsyncLease
from .requests import Amount
from .results import Event, Result

_Value = TypeVar("_Value")


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="treadle", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Value]) -> _Value:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Of the caller's thread, such as KeyboardInterrupt: the work ends with it.
            future.cancel()
            raise

    def stop(self) -> None:
        self.run(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_tasks(self) -> None:
        """What was left in the middle, such as events that nobody read to their end."""
        await self._loop.shutdown_asyncgens()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _made(make: Callable[[], _Value]) -> _Value:
    """What takes the running loop for its own is made there."""
    return make()


class Actions:
    """A connection to `treadle actions serve`; arguments as of `AsyncActions`."""

    def __init__(self, target: str, **options: Any) -> None:
        self._loop = _Loop()
        self._actions = self._loop.run(_made(lambda: AsyncActions(target, **options)))

    def __enter__(self) -> Actions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.run(self._actions.close())
        self._loop.stop()

    def open_trajectory(
        self, name: str | None = None, *, snapshot: Snapshot | str = "", **options: Any
    ) -> Trajectory:
        """As `AsyncActions.open_trajectory`."""
        options["snapshot"] = snapshot if isinstance(snapshot, str) else snapshot.name
        return Trajectory(self._loop, self._loop.run(self._actions.open_trajectory(name, **options)))

    def acquire(self, cost: Mapping[str, Amount], **options: Any) -> Lease:
        """As `AsyncActions.acquire`."""
        return Lease(self._loop, self._loop.run(self._actions.acquire(cost, **options)))

    def quota(self, name: str, units: float = 1, **options: Any) -> Lease:
        """As `AsyncActions.quota`; it waits here, for the units."""
        return self.acquire({name: units}, **options)

    def submit_request(self, service: str, path: str, **options: Any) -> Action:
        """As `AsyncActions.submit_request`: queues it now, and returns before it is sent."""
        made = _made(lambda: self._actions.submit_request(service, path, **options))
        return Action(self._loop, self._loop.run(made))

    def request(self, service: str, path: str, *, check: bool = False, **options: Any) -> Result:
        """`submit_request`, and its result; with `check`, RequestFailed where it was not answered with 200 to 299."""
        return self.submit_request(service, path, **options).result(check=check)

    def statistics(self) -> messages.GetStatisticsReply:
        return self._loop.run(self._actions.statistics())


class Trajectory:
    """An environment: its files stay from action to action, its processes do not."""

    def __init__(self, loop: _Loop, trajectory: AsyncTrajectory) -> None:
        self._loop = loop
        self._trajectory = trajectory

    @property
    def name(self) -> str:
        return self._trajectory.name

    def __enter__(self) -> Trajectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.run(self._trajectory.close())

    def submit(self, command: Sequence[str], **options: Any) -> Action:
        """As `AsyncTrajectory.submit`: queues it now, and returns before it runs."""
        return Action(self._loop, self._loop.run(_made(lambda: self._trajectory.submit(command, **options))))

    def run(self, command: Sequence[str], *, check: bool = False, **options: Any) -> Result:
        """`submit`, and its result; with `check`, CommandFailed where it did not exit with 0."""
        return self.submit(command, **options).result(check=check)

    def submit_request(self, service: str, path: str, **options: Any) -> Action:
        """As `AsyncTrajectory.submit_request`."""
        made = _made(lambda: self._trajectory.submit_request(service, path, **options))
        return Action(self._loop, self._loop.run(made))

    def request(self, service: str, path: str, *, check: bool = False, **options: Any) -> Result:
        """`submit_request`, and its result; with `check`, RequestFailed where it was not answered with 200 to 299."""
        return self.submit_request(service, path, **options).result(check=check)

    def open_session(self, name: str = "main") -> Session:
        """As `AsyncTrajectory.open_session`."""
        return Session(self._loop, self._loop.run(self._trajectory.open_session(name)))

    def session(self, name: str = "main") -> Session:
        """As `AsyncTrajectory.session`."""
        return Session(self._loop, self._trajectory.session(name))

    def snapshot(self, name: str | None = None) -> Snapshot:
        """As `AsyncTrajectory.snapshot`."""
        return Snapshot(self._loop, self._loop.run(self._trajectory.snapshot(name)))

    def fork(self, name: str | None = None, **options: Any) -> Trajectory:
        """As `AsyncTrajectory.fork`."""
        return Trajectory(self._loop, self._loop.run(self._trajectory.fork(name, **options)))

    def write_file(self, path: str, data: bytes | str) -> None:
        self._loop.run(self._trajectory.write_file(path, data))

    def read_file(self, path: str) -> bytes:
        return self._loop.run(self._trajectory.read_file(path))

    def upload(self, source: str | pathlib.Path, target: str) -> None:
        """As `AsyncTrajectory.upload`."""
        self._loop.run(self._trajectory.upload(source, target))

    def download(self, source: str, target: str | pathlib.Path, *, limits: Limits = Limits()) -> None:
        """As `AsyncTrajectory.download`."""
        self._loop.run(self._trajectory.download(source, target, limits=limits))


class Snapshot:
    """A copy of a trajectory's files and sessions; as `AsyncSnapshot`."""

    def __init__(self, loop: _Loop, snapshot: AsyncSnapshot) -> None:
        self._loop = loop
        self._snapshot = snapshot
        self.name = snapshot.name
        self.size_bytes = snapshot.size_bytes

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        self._loop.run(self._snapshot.drop())


class Session:
    """A named shell of a trajectory; as `AsyncSession`."""

    def __init__(self, loop: _Loop, session: AsyncSession) -> None:
        self._loop = loop
        self._session = session

    @property
    def name(self) -> str:
        return self._session.name

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.run(self._session.close())

    def submit(self, text: str, **options: Any) -> Action:
        return Action(self._loop, self._loop.run(_made(lambda: self._session.submit(text, **options))))

    def run(self, text: str, *, check: bool = False, **options: Any) -> Result:
        return self.submit(text, **options).result(check=check)


class Action:
    """A command or a request that was queued: iterate it for its events as they come, or take `result`. One of the two, once."""

    def __init__(self, loop: _Loop, action: AsyncAction) -> None:
        self._loop = loop
        self._action = action

    @property
    def name(self) -> str:
        return self._action.name

    def __iter__(self) -> Iterator[Event]:
        events = self._action.__aiter__()
        while True:
            event = self._loop.run(_next(events))
            if event is None:
                return
            yield event

    def result(self, *, check: bool = False) -> Result:
        return self._loop.run(self._action.result(check=check))

    def cancel(self) -> bool:
        """False where it has ended already."""
        return self._loop.run(self._action.cancel())

    def send(self, data: bytes | str) -> None:
        """To the input of one that is `interactive`. Waits while the command does not read, and returns before it has."""
        self._loop.run(self._action.send(data))

    def end_input(self) -> None:
        self._loop.run(self._action.end_input())

    def signal(self, name: str) -> bool:
        """As `AsyncAction.signal`."""
        return self._loop.run(self._action.signal(name))


async def _next(events: AsyncIterator[Event]) -> Event | None:
    try:
        return await events.__anext__()
    except StopAsyncIteration:
        return None


class Lease:
    """Units that the client holds; released at the end of `with`."""

    def __init__(self, loop: _Loop, lease: AsyncLease) -> None:
        self._loop = loop
        self._lease = lease
        self.allocation = lease.allocation
        self.url = lease.url
        self.why = lease.why

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._lease.__aexit__(kind, error, trace))

    def refused(self, http_status: int, retry_after: str = "") -> None:
        """As `AsyncLease.refused`."""
        self._lease.refused(http_status, retry_after)

    def release(self, *, http_status: int = 0, retry_after: str = "") -> None:
        self._loop.run(self._lease.release(http_status=http_status, retry_after=retry_after))
