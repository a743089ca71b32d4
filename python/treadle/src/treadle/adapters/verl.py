"""verl: a tool whose calls are actions in a sandbox, and whose reward is an elastic one.

In verl's tool configuration:

    tools:
      - class_name: treadle.adapters.verl.SandboxTool
        config:
          type: native
          target: "127.0.0.1:50061"
          reward: { command: [pytest, -n, "{parallel}"], cpu: [1, 8], serial_share: 0.1 }
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..aio import AsyncActions, AsyncTrajectory
from ..results import Result
from ._shared import Reward, connection_of, shown, units_of

_has_verl = False
if not TYPE_CHECKING:
    try:
        from verl.tools.base_tool import BaseTool as _BaseTool
        from verl.tools.schemas import OpenAIFunctionToolSchema as _Schema
        from verl.tools.schemas import ToolResponse

        _has_verl = True
    except ImportError:
        pass

if TYPE_CHECKING or not _has_verl:

    @dataclass
    class ToolResponse:
        text: str | None = None
        image: list[Any] | None = None
        video: list[Any] | None = None

    class _BaseTool:
        def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
            self.config = config
            self.tool_schema = tool_schema
            self.name = tool_schema.function.name

    class _Schema:
        """A description in OpenAI's form, with its fields as attributes."""

        @staticmethod
        def model_validate(value: Mapping[str, Any]) -> Any:
            return SimpleNamespace(type=value["type"], function=SimpleNamespace(**value["function"]))


_described = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Runs a command of bash in the sandbox of this episode, and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "the command"}},
            "required": ["command"],
        },
    },
}


class SandboxTool(_BaseTool):
    """A sandbox for each instance, or with `keep: true` for each of verl's requests, whose calls then share their files.

    `config`: `target`; `token_file`, `tls`, `tenant`; `cpu` and `timeout_seconds` of a call; `environment`, the arguments of
    `open_trajectory`; `reward` (`Reward.of`). verl makes and releases an instance around every call: with `keep`, the
    sandbox is closed by `close_request`, or by the service when it was idle for its `limits.idleSeconds`.
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any = None) -> None:
        super().__init__(config, tool_schema or _Schema.model_validate(_described))
        self._connection = connection_of(config)
        self._reward = Reward.of(config["reward"]) if config.get("reward") else None
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncActions] = weakref.WeakKeyDictionary()
        #: of instances, and of requests that are kept
        self._trajectories: dict[str, asyncio.Task[AsyncTrajectory]] = {}
        self._arguments: dict[str, dict[str, Any]] = {}

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """`create_kwargs`: `files` by path, and arguments of `open_trajectory` that win over the configuration's."""
        instance = instance_id or str(uuid.uuid4())
        self._arguments[instance] = dict(kwargs.get("create_kwargs") or {})
        return instance, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Runs `command` by bash, or `code` by Python."""
        trajectory = await self._trajectory_of(instance_id, getattr(kwargs.get("agent_data"), "request_id", None))
        words = ["python3", "-c", parameters["code"]] if "code" in parameters else ["bash", "-c", parameters["command"]]
        result = await trajectory.run(
            words,
            kind=f"tool:{self.name}",
            cpu=units_of(self.config.get("cpu", 1)),
            timeout_seconds=float(self.config.get("timeout_seconds", 60)),
        )
        metrics = {
            "status": result.status,
            "exit_code": result.exit_code,
            "queueing_seconds": result.queueing_seconds,
            "execution_seconds": result.execution_seconds,
        }
        return ToolResponse(text=shown(result)), 0.0, metrics

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        if self._reward is None:
            return 0.0
        trajectory = await self._trajectory_of(instance_id, getattr(kwargs.get("agent_data"), "request_id", None))
        return self.score(await trajectory.run(self._reward.command, **self._reward.options()))

    def score(self, result: Result) -> float:
        """Override it for a reward of another kind."""
        return 1.0 if result.succeeded else 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self._arguments.pop(instance_id, None)
        await self._close(instance_id)

    async def close_request(self, request_id: str) -> None:
        """Ends the sandbox that `keep` keeps for a request."""
        await self._close(f"request {request_id}")

    async def _close(self, key: str) -> None:
        opening = self._trajectories.pop(key, None)
        if opening is not None:
            await (await opening).close()

    async def _trajectory_of(self, instance: str, request: str | None) -> AsyncTrajectory:
        if instance not in self._arguments:
            raise KeyError(f"instance '{instance}' was not created, or was released; create it first")
        key = f"request {request}" if self.config.get("keep") and request is not None else instance
        if key not in self._trajectories:
            self._trajectories[key] = asyncio.ensure_future(self._open(self._arguments[instance]))
        opening = self._trajectories[key]
        try:
            return await asyncio.shield(opening)
        except Exception:
            self._trajectories.pop(key, None)
            raise

    async def _open(self, arguments: dict[str, Any]) -> AsyncTrajectory:
        files = arguments.get("files") or {}
        environment = {name: value for name, value in arguments.items() if name != "files"}
        trajectory = await self._client().open_trajectory(**{**(self.config.get("environment") or {}), **environment})
        for path, data in files.items():
            await trajectory.write_file(path, data)
        return trajectory

    def _client(self) -> AsyncActions:
        """A connection belongs to an event loop."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = AsyncActions(self.config["target"], **self._connection)
        return client

    async def close(self) -> None:
        """Ends every sandbox and the connection of this event loop."""
        for key in list(self._trajectories):
            await self._close(key)
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
