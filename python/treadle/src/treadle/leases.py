"""Units that a client holds while it does something itself, such as a call of an external service."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._generated import actions_pb2 as messages
from .errors import ActionsError

if TYPE_CHECKING:
    from .aio import AsyncActions

_refusals = (429, 503)


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
        self._refusal = (0, "")

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_released:
            return
        status, retry_after = self._refusal if error is None else refusal_in(error) or self._refusal
        await self.release(http_status=status, retry_after=retry_after)

    def refused(self, http_status: int, retry_after: str = "") -> None:
        """The client's own call was: it is told with the release. Other statuses than 429 and 503 are answers."""
        self._refusal = (http_status, retry_after)

    async def release(self, *, http_status: int = 0, retry_after: str = "") -> None:
        """Gives the units back, once. 429 and 503 of the client's own call, with its Retry-After, stop the quota for everybody."""
        if self._is_released:
            raise ActionsError(f"lease '{self.name}' was released already; acquire another", status="NOT_FOUND")
        self._is_released = True
        request = messages.ReleaseRequest(lease=self.name, http_status=http_status, retry_after=retry_after)
        try:
            await self._actions._call("Release", request, messages.ReleaseReply, fine="NOT_FOUND")
        finally:
            self._call.cancel()


class AsyncQuota:
    """A lease from the beginning of `async with` to its end."""

    def __init__(self, acquiring: Coroutine[Any, Any, AsyncLease]) -> None:
        self._acquiring = acquiring

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._acquiring
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lease.__aexit__(kind, error, trace)


def refusal_in(error: BaseException) -> tuple[int, str] | None:
    """What an HTTP client's error says of status and headers: httpx and requests in its response, aiohttp and urllib itself."""
    source = getattr(error, "response", None)
    source = error if source is None else source
    statuses = (getattr(source, name, None) for name in ("status_code", "status", "code"))
    status = next((one for one in statuses if isinstance(one, int)), 0)
    if status not in _refusals:
        return None
    headers = getattr(source, "headers", None) or {}
    return status, str(headers.get("Retry-After") or headers.get("retry-after") or "")
