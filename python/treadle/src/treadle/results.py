"""What the service tells of an action."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from ._generated import actions_pb2 as messages


@dataclass(frozen=True)
class Queued:
    action: str


@dataclass(frozen=True)
class Started:
    """
    `attempt` counts from 0; output of earlier attempts is void. `why` says why it got no more units and no fewer. `host` has
    the cores; it is empty where the service has no hosts.
    """

    allocation: Mapping[str, float]
    cores: tuple[int, ...]
    attempt: int
    why: str
    host: str = ""


@dataclass(frozen=True)
class Output:
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Finished:
    """`status`: exited, timeout, output-limit, out-of-memory or killed. `exit_code` is None unless it exited.

    Of a request to a service `status` is answered, timeout or output-limit; `http_status` and `headers`, whose names are in lower
    case, are of its answer, and `http_status` is None where none began.
    """

    status: str
    exit_code: int | None
    queueing_seconds: float
    overhead_seconds: float
    execution_seconds: float
    http_status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Event = Union[Queued, Started, Output, Finished]


@dataclass(frozen=True)
class Result(Finished):
    """How an action went, and all that its last attempt printed, or the service answered."""

    stdout: bytes = b""
    stderr: bytes = b""
    allocation: Mapping[str, float] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    why: str = ""
    host: str = ""

    @property
    def succeeded(self) -> bool:
        """It exited with 0, or was answered in full with 200 to 299."""
        if self.status == "answered":
            return self.http_status is not None and 200 <= self.http_status < 300
        return self.exit_code == 0

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="backslashreplace")

    def json(self) -> Any:
        """What it printed, or was answered, read as JSON."""
        return json.loads(self.stdout)


def event_of(message: messages.ActionEvent) -> Event:
    kind = message.WhichOneof("event")
    if kind == "queued":
        return Queued(message.queued.action)
    if kind == "started":
        started = message.started
        return Started(dict(started.allocation), tuple(started.cores), started.attempt, started.why, started.host)
    if kind == "output":
        return Output(message.output.stdout, message.output.stderr)
    done = message.finished
    return Finished(
        status=done.status,
        exit_code=done.exit_code if done.HasField("exit_code") else None,
        queueing_seconds=done.queueing_seconds,
        overhead_seconds=done.overhead_seconds,
        execution_seconds=done.execution_seconds,
        http_status=done.http_status if done.HasField("http_status") else None,
        headers=dict(done.headers),
    )
