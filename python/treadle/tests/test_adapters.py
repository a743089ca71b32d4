"""The adapters against a live service: alone, and as subclasses of what they adapt."""

from __future__ import annotations

import asyncio
import importlib
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import started


@pytest.fixture(params=["alone", "installed"])
def frameworks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With what the adapters adapt hidden, or there; verl is the stand-in beside this file."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("verl", "skyrl_gym", "swerex") or name.startswith("treadle.adapters."):
            monkeypatch.delitem(sys.modules, name)
    if request.param == "alone":
        for name in ("verl", "skyrl_gym", "swerex"):
            monkeypatch.setitem(sys.modules, name, None)
    else:
        monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent / "stand_ins"))
    yield request.param


def adapter(name: str) -> Any:
    return importlib.import_module(f"treadle.adapters.{name}")


def test_a_reward_with_a_stored_profile_scales_over_what_it_measured(tmp_path: pathlib.Path) -> None:
    shared = adapter("_shared")
    stored = tmp_path / "suite.json"
    points = ", ".join(f'{{"units": {units}, "efficiency": 0.9}}' for units in (1, 2, 8))
    stored.write_text(
        '{"kind": "suite", "command": ["suite", "{parallel}"], "duration": 4,'
        f' "elasticity": {{"type": "table", "points": [{points}]}}}}'
    )
    options = shared.Reward.of({"profile": str(stored)}).options()
    assert (options["cpu"], options["elasticity"].by_units[8]) == (shared.Between(1, 8), 0.9)
    assert shared.Reward.of({"profile": str(stored), "cpu": [1, 2]}).options()["cpu"] == shared.Between(1, 2)
    assert shared.Reward.of({"command": ["true"]}).options()["cpu"] == 1.0


def test_verl_makes_calls_rewards_and_releases(frameworks: str, target: str) -> None:
    verl = adapter("verl")

    async def main() -> None:
        reward = {"command": ["sh", "-c", "[ {parallel} -ge 1 ] && grep -q 42 answer"], "cpu": [1, 2], "serial_share": 0.1}
        tool = verl.SandboxTool({"type": "native", "target": target, "reward": reward})
        assert tool.name == tool.get_openai_tool_schema().function.name == "shell"
        instance, response = await tool.create(create_kwargs={"files": {"answer": "41"}})
        assert isinstance(response, verl.ToolResponse)
        assert await tool.calc_reward(instance) == 0.0
        answer, score, metrics = await tool.execute(instance, {"command": "echo 42 > answer; cat answer; exit 3"})
        assert (answer.text, score) == ("42\n\n[exit code 3]", 0.0)
        assert metrics["exit_code"] == 3
        assert await tool.calc_reward(instance) == 1.0
        other, _ = await tool.create("chosen")
        assert other == "chosen"
        both = await asyncio.gather(
            tool.execute(other, {"code": "print(1 + 1)"}), tool.execute(other, {"command": "cat answer"})
        )
        assert both[0][0].text == "2\n"
        assert both[1][2]["exit_code"] == 1, "instances share no files"
        for one in (instance, other):
            await tool.release(one)
        with pytest.raises(KeyError, match="was released"):
            await tool.execute(instance, {"command": "true"})
        await tool.close()

    asyncio.run(main())
    if frameworks == "installed":
        from verl.tools.base_tool import BaseTool

        assert issubclass(verl.SandboxTool, BaseTool)


def test_verl_keeps_the_files_of_a_request_whose_calls_have_instances_of_their_own(frameworks: str, target: str) -> None:
    verl = adapter("verl")

    async def main() -> None:
        tool = verl.SandboxTool({"type": "native", "target": target, "keep": True})
        episodes = [SimpleNamespace(request_id=name) for name in ("first", "second")]
        said: dict[str, str] = {}
        for command in ("echo $((1 + $(cat n 2>/dev/null || echo 0))) > n", "cat n"):
            for episode in (episodes[0], *episodes):
                instance, _ = await tool.create()
                answer, _, _ = await tool.execute(instance, {"command": command}, agent_data=episode)
                said[episode.request_id] = answer.text
                await tool.release(instance)
        assert said == {"first": "2\n", "second": "1\n"}
        await tool.close_request("first")
        await tool.close()

    asyncio.run(main())


def test_skyrl_steps_through_tools_to_a_reward(frameworks: str, target: str) -> None:
    skyrl = adapter("skyrl")
    config = {"target": target, "max_turns": 5}
    extras = {"reward_spec": {"command": ["grep", "-q", "42", "answer"]}, "files": {"task": "6 * 7"}}
    environment = skyrl.SandboxEnv(config, extras=extras)
    try:
        prompt = [{"role": "user", "content": "solve it"}]
        assert environment.init(prompt) == (prompt, {})
        first = environment.step("so <python>print(open('task').read())</python>")
        assert first["observations"] == [{"role": "user", "content": "6 * 7\n"}]
        assert (first["reward"], first["done"], first["metadata"]["tool_name"]) == (0.0, False, "python")
        assert "Call <shell>" in environment.step("I think")["observations"][0]["content"]
        assert environment.step("<shell>echo 42 > answer; false</shell>")["observations"][0]["content"] == "[exit code 1]"
        last = environment.step("<done>")
        assert (last["reward"], last["done"], last["observations"]) == (1.0, True, [])
        group = environment.tool_group
        assert sorted(group.get_tool_names()) == ["python", "shell"]
        assert group.get_tool_to_group_mapping() == {"shell": group.name, "python": group.name}
        assert group.execute_tool("shell", "echo more") == "more\n"
    finally:
        environment.close()
    environment.close()
    short = skyrl.SandboxEnv({"target": target, "max_turns": 1}, extras=extras)
    step = short.step("<shell>true</shell>")
    assert (step["done"], step["reward"]) == (True, 0.0)
    short.close()
    if frameworks == "installed":
        import skyrl_gym

        skyrl_gym.register(id="treadle", entry_point="treadle.adapters.skyrl:SandboxEnv")
        made = skyrl_gym.make("treadle", env_config=config, extras=extras)
        assert isinstance(made, skyrl_gym.Env)
        made.close()


@dataclass
class Action:
    command: str
    session: str = "default"
    timeout: float | None = None
    check: str = "raise"
    error_msg: str = ""
    is_interactive_command: bool = False
    is_interactive_quit: bool = False
    action_type: str = "bash"


@dataclass
class Command:
    command: Any
    timeout: float | None = None
    shell: bool = False
    check: bool = False
    error_msg: str = ""
    env: dict[str, str] | None = None
    cwd: str | None = None
    merge_output_streams: bool = False


@dataclass
class Session:
    session: str = "default"
    startup_source: list[str] = field(default_factory=list)


def test_swerex_starts_runs_and_stops(frameworks: str, target: str, tmp_path: pathlib.Path) -> None:
    swerex = adapter("swerex")
    errors = swerex._exceptions

    async def main() -> None:
        deployment = swerex.TreadleDeployment(target)
        with pytest.raises(errors.DeploymentNotStartedError):
            _ = deployment.runtime
        steps: list[str] = []
        deployment.add_hook(SimpleNamespace(on_custom_step=steps.append))
        await deployment.start()
        assert len(steps) == 1
        assert await deployment.is_alive(timeout=60)
        runtime = deployment.runtime

        await runtime.write_file(SimpleNamespace(path="a/b.txt", content="grüße"))
        read = await runtime.read_file(SimpleNamespace(path="a/b.txt", encoding=None, errors=None))
        assert read.content == "grüße"
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder/x").write_text("up")
        await runtime.upload(SimpleNamespace(source_path=str(tmp_path / "folder"), target_path="up"))

        done = await runtime.execute(Command(["cat", "x"], cwd="up"))
        assert (done.stdout, done.exit_code) == ("up", 0)
        done = await runtime.execute(Command("echo $A; echo b >&2", shell=True, env={"A": "a"}, merge_output_streams=True))
        assert (done.stdout, done.stderr) == ("a\nb\n", "")
        assert (await runtime.execute(Command("exit 4", shell=True))).exit_code == 4
        with pytest.raises(errors.NonZeroExitCodeError, match="why: .*exited with 4"):
            await runtime.execute(Command("exit 4", shell=True, check=True, error_msg="why"))
        with pytest.raises(errors.CommandTimeoutError):
            await runtime.execute(Command(["sleep", "71.25"], timeout=0.3))
        await deployment.stop()
        with pytest.raises(errors.DeploymentNotStartedError):
            _ = deployment.runtime

    asyncio.run(main())
    if frameworks == "installed":
        from swerex.deployment.abstract import AbstractDeployment
        from swerex.runtime.abstract import AbstractRuntime

        assert issubclass(swerex.TreadleDeployment, AbstractDeployment)
        assert issubclass(swerex.TreadleRuntime, AbstractRuntime)


def test_a_session_of_swerex_keeps_all_but_processes(frameworks: str, target: str) -> None:
    swerex = adapter("swerex")
    errors = swerex._exceptions

    async def main() -> None:
        deployment = swerex.TreadleDeployment(target)
        await deployment.start()
        runtime = deployment.runtime
        await runtime.write_file(SimpleNamespace(path="setup.sh", content="SET_UP='at the start'"))
        await runtime.create_session(Session(startup_source=["setup.sh"]))
        with pytest.raises(errors.SessionExistsError):
            await runtime.create_session(Session())

        async def said(command: str, **options: Any) -> str:
            return (await runtime.run_in_session(Action(command, **options))).output

        assert await said("echo $SET_UP") == "at the start\n"
        await said("mkdir -p 'a folder' && cd 'a folder' && export SHOWN=$'two\\nlines' && hidden=1 && list=(x 'y z')")
        await said("greet() { echo \"hello $1\"; }; set -u; IFS=,")
        assert await said('echo "$SHOWN"; echo $hidden; echo "${list[1]}"; greet you; echo ${PWD##*/}') == (
            "two\nlines\n1\ny z\nhello you\na folder\n"
        )
        assert "unbound" in await said("echo $nothing", check="silent")
        assert await said("echo out; echo err >&2") == "out\nerr\n"
        assert await said("echo $TREADLE_UNITS_CPU") == "1\n"
        observation = await runtime.run_in_session(Action("(exit 5)", check="silent"))
        assert observation.exit_code == 5
        assert (await runtime.run_in_session(Action("false", check="ignore"))).exit_code is None
        await said("kept=yes; exit 0")
        assert await said("echo $kept") == "yes\n"
        with pytest.raises(errors.NonZeroExitCodeError, match="exited with 1"):
            await said("false")
        with pytest.raises(errors.BashIncorrectSyntaxError):
            await said("if then")
        with pytest.raises(errors.CommandTimeoutError):
            await said("sleep 71.5", timeout=0.5)
        with pytest.raises(NotImplementedError, match="outlive"):
            await said("python3", is_interactive_command=True)
        await runtime.create_session(Session("other"))
        assert await said("echo ${kept-nothing}; git init -q . && git status --short", session="other") == "nothing\n?? setup.sh\n"

        endless = asyncio.ensure_future(said("touch began; sleep 71.75"))
        await started(runtime.trajectory, "a folder/began")
        await runtime.run_in_session(SimpleNamespace(session="default", action_type="bash_interrupt"))
        with pytest.raises(errors.NonZeroExitCodeError, match="exited with 130"):
            await endless
        assert await said("echo $kept") == "yes\n"
        await runtime.close_session(Session("other"))
        with pytest.raises(errors.SessionDoesNotExistError):
            await said("true", session="other")
        await deployment.stop()

    asyncio.run(main())
