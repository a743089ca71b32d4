"""Engines of several processes, for tests: each process does what it is told, and answers with what it has or how it refuses.

They are forked from one process that has imported PyTorch and started nothing.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import torch
from support import POLICY, batch_of
from treadle_torch.adapters import AdapterOptions
from treadle_torch.device import place
from treadle_torch.engine import Engine
from treadle_torch.errors import Refusal
from treadle_torch.model import ModelOptions, make_model
from treadle_torch.optimiser import Step
from treadle_torch.sharding import Shards

STEP = Step(0.01, 1.0, 1.0, 0.9, 0.99, 1e-8, 0.1)
# By the first part of a kind: vocabulary, a value head, and the adapter's rank and alpha. Few numbers of processes divide them.
SIZES = {"values": (23, True), "plain": (23, False), "wider": (29, True)}
ADAPTERS = {"lora": AdapterOptions(3, 6.0, ("q_proj", "v_proj")), "lora-alpha": AdapterOptions(3, 7.0, ("q_proj", "v_proj"))}
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["shard_peers"])


def make(rank: int, size: int, rendezvous: str, kind: str) -> Engine:
    """`kind`: a name of `SIZES` or `ADAPTERS`, and with `/bfloat16` in that."""
    name, _, dtype = kind.partition("/")
    placement = place("cpu", dtype or "float32")
    vocabulary, has_values = SIZES.get(name, SIZES["values"])
    options = ModelOptions(None, vocabulary, 24, 2, 32, 4, has_values, 3)
    model = make_model(options, placement.dtype, None, adapter=ADAPTERS.get(name), is_shell=rank > 0)
    return Engine(model, 4, placement, use="training", shards=Shards.join(rank, size, rendezvous, 60, placement), is_loaded=False)


def train(engine: Engine, steps: int) -> int:
    for _ in range(steps):
        engine.forward_backward(batch_of(rows=6, columns=10), POLICY)
        engine.optim_step(STEP)
    return engine.policy_version


def state(engine: Engine) -> str | None:
    """Of parameters and moments, whole, where this is the first process."""
    saved = engine.save()
    return saved and hashlib.sha256(b"".join(saved.stream())).hexdigest()


CALLS: dict[str, Any] = {
    "restore": lambda engine: engine.restore(("weights", "optimiser", "cache")) and None,
    "train": train,
    "state": state,
    "base": lambda engine: engine.base,
    "save": lambda engine, copy, base: engine.save_shards(copy, base),
    "write": lambda engine, copy, paths: engine.copies.write(copy, dict(enumerate(paths))),
    "load": lambda engine, paths: engine.load_shards(paths),
}


def serve(rank: int, size: int, rendezvous: str, kind: str, orders: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    engine = make(rank, size, rendezvous, kind)
    while True:
        call, given = orders.recv()
        try:
            orders.send(engine.submit(lambda: CALLS[call](engine, *given)).result())  # noqa: B023 it is awaited
        except Refusal as refusal:
            orders.send((refusal.code, str(refusal)))
        except BaseException as error:  # noqa: BLE001
            orders.send(error)


class Peers:
    """One engine over so many processes, not loaded yet."""

    def __init__(self, size: int, kind: str) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        ends = [CONTEXT.Pipe() for _ in range(size)]
        self._orders = [own for own, _ in ends]
        rendezvous = os.path.join(self._folder.name, "rendezvous")
        self._processes = [
            CONTEXT.Process(target=serve, args=(rank, size, rendezvous, kind, other), daemon=True)
            for rank, (_, other) in enumerate(ends)
        ]
        for each in self._processes:
            each.start()

    def all(self, call: str, *given: object, ranks: slice = slice(None)) -> list[Any]:
        """The answers of all processes. What Python throws is thrown; a refusal is its code and message."""
        for each in self._orders[ranks]:
            each.send((call, given))
        answers = []
        for each in self._orders[ranks]:
            if not each.poll(120):
                raise TimeoutError(f"a process of '{self.size}' does not answer '{call}'")
            answers.append(each.recv())
        for each in answers:
            if isinstance(each, BaseException):
                raise each
        return answers

    def first(self, call: str, *given: object) -> Any:
        return self.all(call, *given)[0]

    def only_first(self, call: str, *given: object) -> Any:
        """As the first process tells nobody of what concerns it alone."""
        return self.all(call, *given, ranks=slice(1))[0]

    def save(self, folder: str, name: str, prefix: str = "part") -> list[str]:
        """Returns where the files are, of which every process has written its own."""
        self.all("save", name, self.first("base"))
        paths = [os.path.join(folder, f"{prefix}-{rank}") for rank in range(self.size)]
        self.all("write", name, paths)
        return paths

    def close(self) -> None:
        for each in self._processes:
            each.kill()
            each.join()
        self._folder.cleanup()
