"""A live `treadle actions serve`, on a free port."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from treadle import Actions, ActionsError, AsyncTrajectory

repository = pathlib.Path(__file__).resolve().parents[3]

configuration = """
listen: 127.0.0.1:0
drivers: [process]
resources:
  cpu: { type: cpu, overcommit: 64 }
  search: { type: quota, concurrency: 1 }
  judge: { type: quota, concurrency: 1 }
limits: { trajectoryMemoryMib: 16 }
"""


def serve(folder: pathlib.Path, text: str) -> tuple[subprocess.Popen[str], str]:
    config = folder / "config.yaml"
    config.write_text(text)
    command = ["node", str(repository / "packages/cli/bin/treadle.js"), "actions", "serve", str(config)]
    service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert service.stdout is not None
    said = ""
    for line in service.stdout:
        said += line
        found = re.search(r"served at (\S+),", said)
        if found is not None and " isolation: " in said:
            # It is never kept from writing.
            threading.Thread(target=service.stdout.read, daemon=True).start()
            return service, found[1]
    raise RuntimeError(f"the service ended with {service.wait()}: {said}")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Starts a service with a configuration, and gives its address."""
    services: list[subprocess.Popen[str]] = []

    def start(text: str, folder: pathlib.Path | None = None) -> str:
        service, address = serve(folder or tmp_path_factory.mktemp("service"), text)
        services.append(service)
        return address

    yield start
    for service in services:
        service.terminate()
    for service in services:
        service.wait()


@pytest.fixture(scope="session")
def target(served: Callable[[str], str]) -> str:
    return os.environ.get("TREADLE_ACTIONS") or served(configuration)


@pytest.fixture()
def actions(target: str) -> Iterator[Actions]:
    with Actions(target) as connected:
        yield connected


class Relay:
    """A way to the service that counts, and that can be cut without a word to either program."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.bytes_back = 0

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.target = "127.0.0.1:{}".format(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._copy(reader, far_writer, False), self._copy(far_reader, writer, True))
        self._writers -= {writer, far_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_back: bool) -> None:
        try:
            while data := await reader.read(65_536):
                self.bytes_back += len(data) if is_back else 0
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()


async def started(trajectory: AsyncTrajectory, name: str) -> None:
    """A file is there: without a core, which what it waits for may hold."""
    while True:
        try:
            await trajectory.read_file(name)
            return
        except ActionsError:
            await asyncio.sleep(0.02)
