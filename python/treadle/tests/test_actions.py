"""The clients against a live service."""

from __future__ import annotations

import asyncio
import email.message
import pathlib
import subprocess
import sys
import time
import urllib.error as urllib_error
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from treadle import (
    ActionCancelled,
    Actions,
    ActionsError,
    Amdahl,
    AsyncActions,
    AsyncTrajectory,
    Between,
    CommandFailed,
    DeadlineExceeded,
    Efficiency,
    Finished,
    OneOf,
    Output,
    Power,
    Profile,
    Queued,
    RequestFailed,
    Retry,
    Seconds,
    Started,
    Tls,
)
from treadle.leases import refusal_in

from conftest import Relay, configuration, repository, started


def test_a_command_runs_and_tells_how_it_went(actions: Actions) -> None:
    with actions.open_trajectory(environment={"FROM": "trajectory"}) as trajectory:
        done = trajectory.run(["sh", "-c", "cat; echo $FROM $OWN; echo no >&2; exit 3"], stdin=b"in ", environment={"OWN": "x"})
        assert (done.status, done.exit_code, done.text, done.stderr) == ("exited", 3, "in trajectory x\n", b"no\n")
        assert not done.succeeded
        assert done.allocation == {"cpu": 1} and len(done.cores) == 1
        assert "unit-aware started" in done.why
        assert done.execution_seconds > 0
    with pytest.raises(ActionsError) as closed:
        trajectory.run(["true"])
    assert closed.value.status == "NOT_FOUND"
    assert closed.value.remedy.startswith("open it first")


def test_events_come_as_they_happen(actions: Actions) -> None:
    with actions.open_trajectory() as trajectory:
        action = trajectory.submit(["sh", "-c", "echo ready; until [ -e go ]; do sleep 0.02; done; echo went"])
        kinds: list[type] = []
        for event in action:
            kinds.append(type(event))
            if isinstance(event, Output) and event.stdout == b"ready\n":
                trajectory.write_file("go", "")
        assert kinds == [Queued, Started, Output, Output, Finished]


def test_actions_of_one_trajectory_run_at_once_and_are_cancelled(actions: Actions) -> None:
    with actions.open_trajectory() as trajectory:
        waits = trajectory.submit(["sh", "-c", "until [ -e go ]; do sleep 0.02; done"], cpu=None)
        trajectory.run(["touch", "go"], cpu=None, check=True)
        assert waits.result().succeeded
        endless = trajectory.submit(["sleep", "70.25"])
        assert endless.cancel()
        with pytest.raises(ActionCancelled):
            endless.result()
        assert not endless.cancel()


def test_an_elastic_command_is_told_its_units(actions: Actions, tmp_path: pathlib.Path) -> None:
    profile = tmp_path / "suite.json"
    profile.write_text(
        '{"kind": "suite", "command": ["echo", "-n", "{parallel}"], "duration": 4,'
        ' "elasticity": {"type": "table", "points": [{"units": 1, "efficiency": 1}, {"units": 2, "efficiency": 0.9}]}}'
    )
    measured = Profile.load(profile)
    assert measured.elasticity == Efficiency({1: 1, 2: 0.9})
    with actions.open_trajectory() as trajectory:
        for elasticity in (measured.elasticity, Amdahl(0.1), Power(0.9), Seconds({1: 4.0, 2: 2.2})):
            done = trajectory.run(measured.command, cpu=OneOf((1, 2)), elasticity=elasticity, duration=measured.duration)
            assert done.text == f"{done.allocation['cpu']:.0f}" and done.text in "12"
        assert trajectory.run(["echo", "{parallel}"]).text == "{parallel}\n"


def test_errors_carry_the_services_code_and_remedy(actions: Actions) -> None:
    with actions.open_trajectory() as trajectory:
        with pytest.raises(ActionsError) as impossible:
            trajectory.run(["true"], cpu=4000)
        assert (impossible.value.status, impossible.value.code) == ("INVALID_ARGUMENT", "action.impossible")
        with pytest.raises(ActionsError) as unknown:
            trajectory.run(["true"], cost={"tpu": 1})
        assert "managed are 'cpu', 'search'" in unknown.value.remedy
        with pytest.raises(CommandFailed) as failed:
            trajectory.run(["sh", "-c", "echo because >&2; exit 7"], check=True)
        assert failed.value.result.exit_code == 7
        assert "exited with 7: because" in str(failed.value)
        with pytest.raises(DeadlineExceeded) as late:
            trajectory.run(["sleep", "70.5"], deadline_seconds=0.3)
        assert late.value.code == "action.deadline"
        assert trajectory.run(["sleep", "70.5"], timeout_seconds=0.3).status == "timeout"
        with pytest.raises(ActionsError, match="could not be read"):
            trajectory.read_file("nowhere")


def test_files_go_there_and_back(actions: Actions) -> None:
    with actions.open_trajectory() as trajectory:
        trajectory.write_file("data", b"\0\xff")
        assert trajectory.read_file("data") == b"\0\xff"


def test_sessions_keep_their_state_and_tell_the_end_of_each_command(actions: Actions) -> None:
    with actions.open_trajectory() as trajectory, trajectory.open_session() as main:
        assert main.name == "main"
        assert main.run("mkdir -p deep && cd deep && export NAME=value; (exit 3)").exit_code == 3
        assert main.run('echo "$NAME in ${PWD##*/}"; echo no >&2', check=True).text == "value in deep\n"
        assert main.run("NAME=late; sleep 70.5", timeout_seconds=0.3).status == "timeout"
        assert main.run("yes", max_output_bytes=1000).status == "output-limit"
        with trajectory.open_session("other") as other:
            assert other.run("echo ${NAME-none}; ls", check=True).text == "none\ndeep\n"
        assert main.run("echo $NAME").text == "value\n"
        asked = main.submit("read -r line; ANSWER=$line", interactive=True)
        with pytest.raises(ActionsError, match="session 'main' runs a command"):
            main.run("true")
        asked.send("forty-two\n")
        assert asked.result().succeeded
        assert main.run("echo $ANSWER").text == "forty-two\n"
    with pytest.raises(ActionsError):
        main.run("true")


def test_a_trajectory_is_forked_with_its_files_and_sessions(actions: Actions) -> None:
    with actions.open_trajectory(environment={"FROM": "trunk"}) as trunk, trunk.open_session() as shell:
        shell.run("mkdir deep && cd deep && echo data > file && NAME=value", check=True)
        with trunk.snapshot() as snapshot:
            assert snapshot.size_bytes > 0
            branches = [actions.open_trajectory(snapshot=snapshot) for _ in range(2)]
        shell.run("echo later > file; NAME=later", check=True)
        branches.append(branches[0].fork())
        for number, branch in enumerate(branches):
            assert branch.run(["sh", "-c", "cat deep/file; echo $FROM"]).text == "data\ntrunk\n"
            assert branch.session("main").run('echo "$NAME"; cat file').text == "value\ndata\n"
            branch.write_file("deep/file", str(number))
        for number, branch in enumerate(branches):
            assert branch.read_file("deep/file") == str(number).encode()
            branch.close()
        waits = trunk.submit(["sh", "-c", "echo > up; until [ -e go ]; do sleep 0.02; done"], cpu=None)
        trunk.run(["sh", "-c", "until [ -e up ]; do sleep 0.02; done"], cpu=None)
        with pytest.raises(ActionsError, match="of files at rest, and 1 command runs"):
            trunk.snapshot()
        trunk.write_file("go", "")
        assert waits.result().succeeded
        with pytest.raises(ActionsError, match="was dropped"):
            actions.open_trajectory(snapshot=snapshot)


def test_a_process_runs_beside_others_is_talked_to_and_signalled(actions: Actions) -> None:
    with actions.open_trajectory() as trajectory:
        script = "import sys\nprint('up', flush=True)\nfor line in sys.stdin: print(eval(line), flush=True)\nprint('over')"
        process = trajectory.submit([sys.executable, "-c", script], cpu=None, interactive=True, timeout_seconds=3600)
        events = iter(process)
        printed: list[bytes] = []

        def line() -> bytes:
            while not b"".join(printed).endswith(b"\n"):
                event = next(events)
                if isinstance(event, Output):
                    printed.append(event.stdout)
            said = b"".join(printed)
            printed.clear()
            return said

        assert line() == b"up\n"
        for number in range(3):
            process.send(f"{number} * 7\n")
            assert line() == f"{number * 7}\n".encode()
        assert process.signal("STOP") and process.signal("CONT")
        process.end_input()
        assert line() == b"over\n"
        assert [one.exit_code for one in events if isinstance(one, Finished)] == [0]
        waits = trajectory.submit(["sh", "-c", "trap 'exit 4' TERM; echo > up; while :; do sleep 0.02; done"], cpu=None)
        trajectory.run(["sh", "-c", "until [ -e up ]; do sleep 0.02; done"], cpu=None)
        assert waits.signal("TERM")
        assert waits.result().exit_code == 4
        assert not waits.signal("TERM")


def test_input_whose_connection_is_cut_arrives_once(target: str) -> None:
    async def main() -> None:
        async with Relay(target) as relay, AsyncActions(relay.target) as actions:
            async with await actions.open_trajectory() as trajectory:
                action = trajectory.submit(["sh", "-c", "sleep 0.5; cat"], interactive=True, max_output_bytes=2**25)
                result = asyncio.ensure_future(action.result())
                data = bytes(range(256)) * 12_000  # more than the service keeps of what was not read
                sending = asyncio.ensure_future(action.send(data))
                for _ in range(3):
                    await asyncio.sleep(0.2)
                    relay.cut()
                await sending
                await action.end_input()
                assert (await result).stdout == data

    asyncio.run(main())


def test_a_quota_is_held_while_the_client_uses_it(actions: Actions) -> None:
    held: Callable[[], float] = lambda: actions.statistics().resources["search"].held
    with actions.acquire({"search": 1}) as lease:
        assert lease.allocation == {"search": 1}
        assert held() == 1
        with pytest.raises(DeadlineExceeded):
            actions.quota("search", deadline_seconds=0.2)
        lease.release(http_status=200)
        with pytest.raises(ActionsError, match="was released already"):
            lease.release()
    assert held() == 0
    with pytest.raises(ActionsError, match="is not held: it was released, or ended with its call") as late:
        with actions.quota("search", deadline_seconds=0.3):
            while held() > 0:
                pass
    assert late.value.status == "NOT_FOUND"
    with pytest.raises(ActionsError, match="'nowhere' is not managed; managed are 'cpu', 'search'"):
        actions.quota("nowhere")


services = """
listen: 127.0.0.1:0
drivers: [process]
resources:
  cpu: { type: cpu }
  gpu:
    type: gpu
    devices: 1
    memoryMibPerDevice: 640
    mainMemory: true
    services:
      judge: { command: [node, "ENGINE", "{port}"], variants: [{ dop: 1, memoryMib: 600 }] }
"""


def test_a_request_to_a_service_is_an_action(served: Callable[[str], str]) -> None:
    engine = repository / "packages/actions/test/support/openai-server.mjs"
    target = served(services.replace("ENGINE", str(engine)))

    def question(content: str, **more: object) -> dict[str, object]:
        return {"model": "judge", "messages": [{"role": "user", "content": content}], **more}

    path = "/v1/chat/completions"
    with Actions(target) as actions, actions.open_trajectory() as trajectory:
        for asker in (actions, trajectory):
            answer = asker.request("judge", path, json=question("say"), check=True)
            assert answer.succeeded and (answer.status, answer.http_status, answer.exit_code) == ("answered", 200, None)
            assert answer.json()["model"] == "judge" and answer.allocation == {"gpu": 1}
            assert answer.headers["content-type"] == "application/json"
        with pytest.raises(RequestFailed) as refused:
            actions.request("judge", path, json=question("refuse"), check=True)
        assert refused.value.result.http_status == 429 and "slow down" in refused.value.message
        with pytest.raises(ActionsError) as unknown:
            actions.request("nobody", path)
        assert "served are 'judge'" in unknown.value.message
        with pytest.raises(ValueError, match="body and json"):
            actions.request("judge", path, json={}, body=b"x")
        assert actions.request("judge", path, json=question("hang"), timeout_seconds=0.2).status == "timeout"

    async def ask() -> None:
        async with AsyncActions(target) as actions:
            action = actions.submit_request("judge", path, body='{"model": "judge", "input": "a"}')
            events = [event async for event in action]
            assert [type(event) for event in events] == [Queued, Started, Output, Finished]
            async with await actions.open_trajectory() as trajectory:
                hanging = trajectory.submit_request("judge", path, json=question("hang"))
            with pytest.raises(ActionCancelled):
                await hanging.result()

    asyncio.run(ask())


def test_a_quota_ends_with_its_client(target: str) -> None:
    async def main() -> None:
        async with AsyncActions(target) as other:
            async with AsyncActions(target) as actions:
                await actions.acquire({"judge": 1})
                waiting = asyncio.ensure_future(other.acquire({"judge": 1}))
                await asyncio.sleep(0.1)
                assert not waiting.done()
            await (await waiting).release()

    asyncio.run(main())


class _Response:
    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code, self.headers = status_code, headers


class _HttpError(Exception):
    """As httpx and requests raise one."""

    def __init__(self, response: _Response) -> None:
        super().__init__(f"status {response.status_code}")
        self.response = response


def test_a_refusal_of_the_clients_own_call_stops_the_quota_for_everybody(actions: Actions, target: str) -> None:
    async def refused(status: int) -> None:
        async with AsyncActions(target) as other, other.quota("judge"):
            raise _HttpError(_Response(status, **{"Retry-After": "1"}))

    def told() -> None:
        with actions.quota("judge") as lease:
            lease.refused(503, "1")

    def urllib() -> None:
        headers = email.message.Message()
        headers["Retry-After"] = "1"
        with actions.quota("judge"):
            raise urllib_error.HTTPError("http://judge", 429, "Too Many Requests", headers, None)

    for refuse, error in (
        (lambda: asyncio.run(refused(429)), _HttpError),
        (told, None),
        (urllib, urllib_error.HTTPError),
    ):
        began = time.monotonic()
        with pytest.raises(error) if error else nullcontext():
            refuse()
        with actions.quota("judge"):
            # Never earlier than it asked for; timers may be a millisecond short.
            assert time.monotonic() - began > 0.99
    assert refusal_in(_HttpError(_Response(500))) is None and refusal_in(ValueError()) is None


def test_a_submit_whose_connection_is_cut_runs_once_and_loses_nothing(target: str) -> None:
    async def main() -> None:
        async with Relay(target) as relay, AsyncActions(relay.target) as actions, AsyncActions(target) as direct:
            trajectory = await actions.open_trajectory()
            aside = AsyncTrajectory(direct, trajectory.name, 60)
            script = "echo once >> runs; echo before; until [ -e go ]; do sleep 0.02; done; echo after"
            action = trajectory.submit(["sh", "-c", script])
            result = asyncio.ensure_future(action.result())
            for _ in range(3):
                await started(aside, "runs")
                relay.cut()
                await asyncio.sleep(0.2)
            await aside.write_file("go", "")
            assert (await result).text == "before\nafter\n"
            assert await aside.read_file("runs") == b"once\n"
            await trajectory.close()

    asyncio.run(main())


def test_one_that_nobody_waits_for_any_more_is_cancelled(target: str) -> None:
    async def main() -> None:
        async with AsyncActions(target) as actions, await actions.open_trajectory() as trajectory:
            waiting = asyncio.ensure_future(trajectory.run(["sh", "-c", "echo > began; sleep 70.75"], kind="left"))
            await started(trajectory, "began")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while (await actions.statistics()).kinds["left"].cancelled == 0:
                await asyncio.sleep(0.02)

    asyncio.run(main())


def test_what_is_not_read_stays_with_the_service(target: str) -> None:
    async def main() -> None:
        async with Relay(target) as relay, AsyncActions(relay.target) as actions, AsyncActions(target) as direct:
            trajectory = await actions.open_trajectory()
            action = trajectory.submit(["head", "-c", "30000000", "/dev/zero"], kind="prints", max_output_bytes=2**25)
            while (await direct.statistics()).kinds["prints"].completed == 0:
                await asyncio.sleep(0.02)
            # Windows of flow control, and the buffers of four sockets.
            assert relay.bytes_back < 15_000_000
            assert len((await action.result()).stdout) == 30_000_000
            assert relay.bytes_back >= 30_000_000
            await trajectory.close()

    asyncio.run(main())


def test_a_service_that_starts_later_is_waited_for_and_one_that_does_not_is_an_error(target: str) -> None:
    async def main() -> None:
        async with Relay(target) as relay:
            free = relay.target
        async with AsyncActions(free, retry=Retry(seconds=0.3)) as nobody:
            with pytest.raises(ActionsError) as refused:
                await nobody.statistics()
            assert refused.value.status == "UNAVAILABLE"
        async with AsyncActions(free, retry=Retry(seconds=120)) as patient:
            asked = asyncio.ensure_future(patient.statistics())
            await asyncio.sleep(0.3)
            host, _, port = target.rpartition(":")
            assert not asked.done()

            async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await Relay._join(late, reader, writer)

            late = Relay(target)
            server = await asyncio.start_server(join, *free.split(":"))
            assert (await asked).policy == "unit-aware"
            server.close()
            late.cut()

    asyncio.run(main())


def test_tls_and_a_token_make_the_tenant(served: Callable[..., str], tmp_path: pathlib.Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*made, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    (tmp_path / "a.token").write_text("secret of a\n")
    secured = f"tls: {{ certificate: {certificate}, key: {key} }}\ntenants: {{ a: {{ tokenFile: a.token }} }}\n"
    target = served(configuration + secured, tmp_path)
    with Actions(target, tls=Tls(authority=certificate), token="secret of a") as actions:
        with actions.open_trajectory() as trajectory:
            assert trajectory.run(["echo", "hello"]).text == "hello\n"
        assert [start.tenant for start in actions.statistics().started] == ["a"]
    with Actions(target, tls=Tls(authority=certificate), token="of nobody") as actions:
        with pytest.raises(ActionsError) as unknown:
            actions.open_trajectory()
        assert unknown.value.status == "UNAUTHENTICATED"


def test_plain_clients_are_used_by_threads_at_once(actions: Actions) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with actions.open_trajectory() as trajectory, ThreadPoolExecutor(8) as threads:
        said = threads.map(lambda number: trajectory.run(["echo", str(number)]).text, range(16))
        assert list(said) == [f"{number}\n" for number in range(16)]


def test_the_package_needs_grpc_and_protobuf_alone() -> None:
    script = "import sys, treadle, treadle.adapters.verl; print([m for m in ('yaml', 'pydantic', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
