"""What goes wrong, with the service's code and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio

if TYPE_CHECKING:
    from .results import Result


class ActionsError(Exception):
    """A request that failed, in the service's words.

    `status` is gRPC's name, such as ``INVALID_ARGUMENT``. `code` is the service's own, such as ``action.impossible``, and
    empty where it gave none. `remedy` is what the message ends with: what to do about it.
    """

    def __init__(self, message: str, *, status: str, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code

    @property
    def remedy(self) -> str:
        return self.message.rpartition("; ")[2] if "; " in self.message else ""

    def __str__(self) -> str:
        return f"{self.message} ({self.code or self.status})"

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> ActionsError:
        status = error.code().name
        kind = {"CANCELLED": ActionCancelled, "DEADLINE_EXCEEDED": DeadlineExceeded, "DATA_LOSS": SandboxLost}
        return kind.get(status, ActionsError)(error.details() or status, status=status, code=code_of(error))


class ActionCancelled(ActionsError):
    """Somebody cancelled the action, or its trajectory was closed."""


class DeadlineExceeded(ActionsError):
    """The action, its queueing included, or the call took longer than it may."""


class SandboxLost(ActionsError):
    """The trajectory's sandbox died with its files; everything that it is asked fails until it is closed."""


class CommandFailed(ActionsError):
    """A command that was to succeed did not; `result` has what it printed."""

    def __init__(self, result: Result) -> None:
        how = f"exited with {result.exit_code}" if result.status == "exited" else f"ended with '{result.status}'"
        last = (result.stderr or result.stdout)[-500:].decode(errors="backslashreplace").strip()
        super().__init__(f"the command {how}: {last}", status="OK", code="command.failed")
        self.result = result


class RequestFailed(ActionsError):
    """A request to a service that was to succeed did not; `result` has what it was answered."""

    def __init__(self, result: Result) -> None:
        how = f"was answered with {result.http_status}" if result.status == "answered" else f"ended with '{result.status}'"
        last = result.stdout[-500:].decode(errors="backslashreplace").strip()
        super().__init__(f"the request {how}: {last}", status="OK", code="request.failed")
        self.result = result


def code_of(error: grpc.aio.AioRpcError) -> str:
    for name, value in error.trailing_metadata() or ():
        if name == "treadle-code":
            return value if isinstance(value, str) else value.decode()
    return ""
