"""SWE-ReX: a deployment and a runtime whose commands are actions.

A session of bash is a session of the service (`AsyncSession`): no core is held between two of its commands. What it cannot keep
is a process: background jobs end with their command, and interactive programs are refused.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..action import AsyncAction
from ..aio import AsyncActions, AsyncSession, AsyncTrajectory
from ..errors import ActionCancelled, ActionsError, DeadlineExceeded
from ..requests import Amount
from ..results import Result

_has_swerex = False
if not TYPE_CHECKING:
    try:
        from swerex import exceptions as _exceptions
        from swerex.deployment.abstract import AbstractDeployment as _Deployment
        from swerex.runtime import abstract as _answers
        from swerex.runtime.abstract import AbstractRuntime as _Runtime

        _has_swerex = True
    except ImportError:
        pass

if TYPE_CHECKING or not _has_swerex:

    class _Deployment:
        pass

    class _Runtime:
        pass

    class _answers:
        """The answers of SWE-ReX, as far as callers read them."""

        @dataclass
        class IsAliveResponse:
            is_alive: bool
            message: str = ""

            def __bool__(self) -> bool:
                return self.is_alive

        @dataclass
        class CommandResponse:
            stdout: str = ""
            stderr: str = ""
            exit_code: int | None = None

        @dataclass
        class BashObservation:
            output: str = ""
            exit_code: int | None = None
            failure_reason: str = ""
            expect_string: str = ""

        @dataclass
        class CreateBashSessionResponse:
            output: str = ""

        @dataclass
        class ReadFileResponse:
            content: str = ""

        class CloseBashSessionResponse:
            pass

        class WriteFileResponse:
            pass

        class UploadResponse:
            pass

        class CloseResponse:
            pass

    class _exceptions:
        """The errors of SWE-ReX, with the built-in classes that they have there."""

        class NonZeroExitCodeError(RuntimeError):
            pass

        class BashIncorrectSyntaxError(RuntimeError):
            pass

        class CommandTimeoutError(RuntimeError, TimeoutError):
            pass

        class SessionExistsError(ValueError):
            pass

        class SessionDoesNotExistError(ValueError):
            pass

        class DeploymentNotStartedError(RuntimeError):
            pass


class TreadleRuntime(_Runtime):
    """Runs what SWE-ReX asks for in a trajectory; requests are SWE-ReX's, or anything with the same fields."""

    def __init__(
        self,
        trajectory: AsyncTrajectory,
        *,
        cpu: Amount = 1,
        timeout_seconds: float = 3600.0,
        logger: logging.Logger | None = None,
    ) -> None:
        """`timeout_seconds` is of commands that give none."""
        self.trajectory = trajectory
        self.logger = logger or logging.getLogger("treadle.swerex")
        self._cpu = cpu
        self._timeout_seconds = timeout_seconds
        self._sessions: dict[str, AsyncSession] = {}
        self._running: dict[str, AsyncAction] = {}

    async def is_alive(self, *, timeout: float | None = None) -> Any:
        try:
            await asyncio.wait_for(self.trajectory.actions.statistics(), timeout)
        except (ActionsError, TimeoutError, asyncio.TimeoutError) as error:
            return _answers.IsAliveResponse(is_alive=False, message=str(error) or "no answer in time")
        return _answers.IsAliveResponse(is_alive=True)

    async def create_session(self, request: Any) -> Any:
        if request.session in self._sessions:
            raise _exceptions.SessionExistsError(f"session '{request.session}' exists; choose another name")
        self._sessions[request.session] = await self.trajectory.open_session(f"swerex-{uuid.uuid4().hex}")
        sources = " && ".join(f"source {path}" for path in request.startup_source)
        result = await self._in_session(request.session, sources or ":", self._timeout_seconds)
        if result.exit_code != 0:
            await self._sessions.pop(request.session).close()
            raise _exceptions.NonZeroExitCodeError(f"session '{request.session}' did not start: {result.text}")
        return _answers.CreateBashSessionResponse(output=result.text)

    async def run_in_session(self, action: Any) -> Any:
        if action.session not in self._sessions:
            raise _exceptions.SessionDoesNotExistError(f"session '{action.session}' does not exist; create it first")
        if action.action_type == "bash_interrupt":
            running = self._running.get(action.session)
            if running is not None and not await running.signal("INT"):
                await running.cancel()
            return _answers.BashObservation(exit_code=0)
        if action.is_interactive_command or action.is_interactive_quit:
            raise NotImplementedError(
                "interactive programs outlive their command, which an action does not; give the program its input instead"
            )
        result = await self._in_session(action.session, action.command, action.timeout)
        exit_code = result.exit_code
        if exit_code is None:
            raise _exceptions.NonZeroExitCodeError(f"'{action.command}' ended with '{result.status}': {result.text}")
        if exit_code != 0 and "syntax error" in result.text:
            check = await self._run(["bash", "-n", "-c", action.command], self._timeout_seconds)
            if not check.succeeded:
                raise _exceptions.BashIncorrectSyntaxError(check.stderr.decode(errors="backslashreplace"))
        if action.check == "raise" and exit_code != 0:
            said = f"'{action.command}' exited with {exit_code}: {result.text}"
            raise _exceptions.NonZeroExitCodeError(f"{action.error_msg}: {said}" if action.error_msg else said)
        return _answers.BashObservation(output=result.text, exit_code=None if action.check == "ignore" else exit_code)

    async def close_session(self, request: Any) -> Any:
        session = self._sessions.pop(request.session, None)
        if session is None:
            raise _exceptions.SessionDoesNotExistError(f"session '{request.session}' does not exist")
        await session.close()
        return _answers.CloseBashSessionResponse()

    async def execute(self, command: Any) -> Any:
        words = ["sh", "-c", command.command] if command.shell else list(_words(command.command))
        prologue = ("exec 2>&1; " if command.merge_output_streams else "") + 'cd -- "$1" && shift && exec "$@"'
        if command.merge_output_streams or command.cwd is not None:
            words = ["sh", "-c", prologue, "sh", command.cwd or ".", *words]
        result = await self._run(words, command.timeout, environment=command.env)
        if result.exit_code is None or (command.check and result.exit_code != 0):
            how = result.status if result.exit_code is None else f"exited with {result.exit_code}"
            said = f"'{command.command}' {how}: {result.text}{result.stderr.decode(errors='backslashreplace')}"
            raise _exceptions.NonZeroExitCodeError(f"{command.error_msg}: {said}" if command.error_msg else said)
        return _answers.CommandResponse(
            stdout=result.text, stderr=result.stderr.decode(errors="backslashreplace"), exit_code=result.exit_code
        )

    async def read_file(self, request: Any) -> Any:
        data = await self.trajectory.read_file(request.path)
        return _answers.ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: Any) -> Any:
        await self.trajectory.write_file(request.path, request.content)
        return _answers.WriteFileResponse()

    async def upload(self, request: Any) -> Any:
        await self.trajectory.upload(request.source_path, request.target_path)
        return _answers.UploadResponse()

    async def close(self) -> Any:
        await self.trajectory.close()
        return _answers.CloseResponse()

    async def _in_session(self, session: str, command: str, timeout: float | None) -> Result:
        """Both outputs in one, as a terminal has them."""
        seconds = self._seconds(timeout)
        text = f"exec 2>&1\n{command}"
        action = self._sessions[session].submit(text, kind="swerex", cpu=self._cpu, timeout_seconds=seconds)
        self._running[session] = action
        try:
            return await self._result(action, seconds)
        finally:
            self._running.pop(session, None)

    async def _run(
        self, command: list[str], timeout: float | None, *, environment: dict[str, str] | None = None
    ) -> Result:
        seconds = self._seconds(timeout)
        action = self.trajectory.submit(
            command, kind="swerex", cpu=self._cpu, timeout_seconds=seconds, environment=environment
        )
        return await self._result(action, seconds)

    async def _result(self, action: AsyncAction, seconds: float) -> Result:
        try:
            result = await action.result()
        except (ActionCancelled, DeadlineExceeded) as error:
            raise _exceptions.CommandTimeoutError(str(error)) from error
        if result.status == "timeout":
            raise _exceptions.CommandTimeoutError(f"the command did not end within {seconds} s: {result.text[-2000:]}")
        return result

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout_seconds if timeout is None else timeout


class TreadleDeployment(_Deployment):
    """`start` opens a trajectory at an actions service, `stop` closes it.

    `options` are those of `AsyncActions` (token, tls, tenant); `environment` those of `AsyncActions.open_trajectory` (image,
    working_folder, memory_bytes); `runtime` those of `TreadleRuntime`.
    """

    def __init__(
        self,
        target: str,
        *,
        environment: dict[str, Any] | None = None,
        runtime: dict[str, Any] | None = None,
        logger: logging.Logger | None = None,
        **options: Any,
    ) -> None:
        self.logger = logger or logging.getLogger("treadle.swerex")
        self._target = target
        self._options = options
        self._environment = environment or {}
        self._runtime_options = runtime or {}
        self._hooks: list[Any] = []
        self._actions: AsyncActions | None = None
        self._runtime: TreadleRuntime | None = None

    def add_hook(self, hook: Any) -> None:
        self._hooks.append(hook)

    async def is_alive(self, *, timeout: float | None = None) -> Any:
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        for hook in self._hooks:
            hook.on_custom_step("Opening a trajectory")
        actions = AsyncActions(self._target, **self._options)
        try:
            trajectory = await actions.open_trajectory(**self._environment)
        except BaseException:
            await actions.close()
            raise
        self._actions = actions
        self._runtime = TreadleRuntime(trajectory, logger=self.logger, **self._runtime_options)

    async def stop(self) -> None:
        runtime, actions = self._runtime, self._actions
        self._runtime = self._actions = None
        try:
            if runtime is not None:
                await runtime.close()
        finally:
            if actions is not None:
                await actions.close()

    @property
    def runtime(self) -> TreadleRuntime:
        if self._runtime is None:
            raise _exceptions.DeploymentNotStartedError("the deployment is not started; await start() first")
        return self._runtime


def _words(command: str | list[str]) -> list[str]:
    return [command] if isinstance(command, str) else command
