"""SkyRL: a tool group whose tools run as actions, and an environment with one that is rewarded by a test suite.

    skyrl_gym.register(id="sandbox", entry_point="treadle.adapters.skyrl:SandboxEnv")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..client import Actions, Trajectory
from ..errors import ActionsError
from ..results import Result
from ._shared import Reward, connection_of, shown, units_of

_has_skyrl = False
if not TYPE_CHECKING:
    try:
        from skyrl_gym.envs.base_text_env import BaseTextEnv as _TextEnv
        from skyrl_gym.tools.core import ToolGroup as _ToolGroup
        from skyrl_gym.tools.core import tool as _tool

        _has_skyrl = True
    except ImportError:
        pass

if TYPE_CHECKING or not _has_skyrl:

    def _tool(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__dict__["is_tool"] = True
        return function

    class _ToolGroup:
        def __init__(self, name: str) -> None:
            self.name = name
            self._tools = {key: getattr(self, key) for key, value in vars(type(self)).items() if hasattr(value, "is_tool")}

        def get_name(self) -> str:
            return self.name

        def get_tool(self, name: str) -> Callable[..., Any] | None:
            return self._tools.get(name)

        def get_tool_names(self) -> list[str]:
            return list(self._tools)

        def get_tool_to_group_mapping(self) -> dict[str, str]:
            return dict.fromkeys(self._tools, self.name)

        def execute_tool(self, name: str, *args: Any, **kwargs: Any) -> Any:
            if name not in self._tools:
                raise ValueError(f"tool '{name}' is not in group '{self.name}'; it has {', '.join(self._tools)}")
            return self._tools[name](*args, **kwargs)

    class _TextEnv:
        def __init__(self) -> None:
            self.turns = 0
            self.max_turns = 1
            self.tool_groups: list[Any] = []

        def init_tool_groups(self, tool_groups: Sequence[Any] = ()) -> None:
            self.tool_groups = list(tool_groups)

        def _execute_tool(self, tool_group_name: str, tool_name: str, tool_input: Sequence[Any]) -> Any:
            group = next(one for one in self.tool_groups if one.name == tool_group_name)
            return group.execute_tool(tool_name, *tool_input)


class SandboxToolGroup(_ToolGroup):
    """`shell` and `python`, in one sandbox, which `close` ends."""

    def __init__(self, trajectory: Trajectory, *, cpu: Any = 1, timeout_seconds: float = 60.0) -> None:
        self.trajectory = trajectory
        self._options: dict[str, Any] = {"cpu": units_of(cpu), "timeout_seconds": timeout_seconds}
        super().__init__(name="SandboxToolGroup")

    @_tool
    def shell(self, command: str) -> str:
        return shown(self.trajectory.run(["bash", "-c", command], kind="tool:shell", **self._options))

    @_tool
    def python(self, code: str) -> str:
        return shown(self.trajectory.run(["python3", "-c", code], kind="tool:python", **self._options))


class SandboxEnv(_TextEnv):
    """A model calls ``<shell>…</shell>`` or ``<python>…</python>``, and says ``<done>``; then the reward's command decides.

    `env_config`: `target`; `token_file`, `tls`, `tenant`; `cpu` and `timeout_seconds` of a call; `environment`, the arguments
    of `open_trajectory`; `max_turns`. `extras`: `files` by path; `reward_spec` (`Reward.of`), also in `env_config`.
    """

    def __init__(self, env_config: Any, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        extras = extras or {}
        config = dict(env_config)
        self.max_turns = int(extras.get("max_turns", config.get("max_turns", 8)))
        self._reward = Reward.of(extras.get("reward_spec") or config["reward_spec"])
        self._actions = Actions(config["target"], **connection_of(config))
        try:
            self.trajectory = self._actions.open_trajectory(**dict(config.get("environment") or {}))
            for path, data in (extras.get("files") or {}).items():
                self.trajectory.write_file(path, data)
        except BaseException:
            self._actions.close()
            raise
        self.tool_group = SandboxToolGroup(
            self.trajectory, cpu=config.get("cpu", 1), timeout_seconds=float(config.get("timeout_seconds", 60))
        )
        self.init_tool_groups([self.tool_group])
        self._is_closed = False

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        self.turns += 1
        call = re.search(r"<(shell|python)>(.*?)</\1>", action, re.DOTALL)
        if call is None and "<done>" not in action:
            said = "Call <shell>…</shell> or <python>…</python>, or say <done>."
        elif call is None:
            return self._last([], {})
        else:
            try:
                said = self._execute_tool(self.tool_group.name, call[1], [call[2]])
            except ActionsError as error:
                said = str(error)
        metadata = {} if call is None else {"tool_group": self.tool_group.name, "tool_name": call[1]}
        told = [{"role": "user", "content": said}]
        if self.turns >= self.max_turns:
            return self._last(told, metadata)
        return {"observations": told, "reward": 0.0, "done": False, "metadata": metadata}

    def score(self, result: Result) -> float:
        """Override it for a reward of another kind."""
        return 1.0 if result.succeeded else 0.0

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.trajectory.close()
        finally:
            self._actions.close()

    def _last(self, told: list[dict[str, str]], metadata: dict[str, Any]) -> dict[str, Any]:
        result = self.trajectory.run(self._reward.command, **self._reward.options())
        timing = {"reward_queueing_seconds": result.queueing_seconds, "reward_execution_seconds": result.execution_seconds}
        return {"observations": told, "reward": self.score(result), "done": True, "metadata": {**metadata, **timing}}
