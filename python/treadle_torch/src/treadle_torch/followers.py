"""The other processes of an engine that has several: started, told of each job, watched, ended.

PF1 none outlives who has started it: it ends with its standard input, and where it is stopped, with its parent (Linux).
PF2 when one ends, the first ends and says which: what the engine has is in parts, and one is gone.
PF3 one that is ready says so again and again; when it has been silent for too long, it is stopped or frozen, and the first ends, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict
from typing import IO, Any, NoReturn

import torch

from .checkpoint import Checkpoint
from .engine import Engine
from .errors import Refusal, invalid
from .losses import PolicyGradient, ValueTerm
from .optimiser import Step
from .shard_files import Written

# Of a process's input: what is no job; of its output: that it was done.
WRITE = "write_shard"
WROTE = b"wrote "

# How long whoever was in a failed job waits for the watch of an ended process to say so, on a busy machine too.
CAUSE_S = 3
REFUSED = 2
ENDED = 5
FAILED = 6


class Followers:
    """Held by the first process."""

    def __init__(self, settings: dict[str, Any], size: int) -> None:
        """Each reads its settings, of its rank, as the first has read its own."""
        self._is_ending = False
        self._silence_s = settings["silence_s"]
        self._sending = threading.Lock()
        self._writing: dict[tuple[str, int], Future[Written]] = {}
        self._children = [
            subprocess.Popen([sys.executable, "-m", __package__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(1, size)
        ]
        for rank, child in enumerate(self._children, 1):
            self._send(child, {**settings, "rank": rank})
            threading.Thread(target=self._watch, args=(rank, child), daemon=True).start()

    def tell(self, call: str, **given: object) -> None:
        for child in self._children:
            self._send(child, {"call": call, **given})

    def write_shards(self, engine: Engine, copy: str, paths: list[str]) -> list[Written]:
        """What each process has copied, to its path, all at once and beside the jobs."""
        if len(paths) != engine.shards.size:
            raise invalid(f"'{len(paths)}' paths came where the engine has '{engine.shards.size}' processes")
        own = engine.copies.ranks_of(copy)
        others: dict[int, Future[Written]] = {}
        for rank, child in enumerate(self._children, 1):
            if rank not in own:
                others[rank] = self._writing[copy, rank] = Future()
                self._send(child, {"call": WRITE, "copy": copy, "path": paths[rank]})
        written = engine.copies.write(copy, dict(enumerate(paths)))
        written |= {rank: each.result() for rank, each in others.items()}
        return [written[rank] for rank in range(len(paths))]

    def broken(self, error: BaseException) -> None:
        """A job has failed that others are still at: whoever waits for it is answered, and all of them end."""
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)

        def end() -> None:
            # Where another's end is the cause, that is seen first.
            time.sleep(CAUSE_S)
            self._end_all(ENDED)

        threading.Thread(target=end, daemon=True).start()

    def end(self) -> None:
        self._is_ending = True
        for child in self._children:
            child.kill()

    def _watch(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        said, heard = "", None
        for line in child.stdout:  # until it ends
            if line.startswith(WROTE):
                self._written(rank, json.loads(line[len(WROTE) :]))
            elif text := line.decode(errors="replace").strip():
                said = text
            elif heard is None:
                heard = threading.Event()
                threading.Thread(target=self._listen, args=(rank, heard), daemon=True).start()
            else:
                heard.set()
        status = child.wait()
        if self._is_ending:
            return
        if status == REFUSED:
            # What is wrong with the configuration is this process's answer.
            print(said, flush=True)
            self._end_all(REFUSED)
        self._lost(rank, f"was ended by signal {-status}" if status < 0 else f"ended with code {status}")

    def _written(self, rank: int, told: dict[str, Any]) -> None:
        future = self._writing.pop((told["copy"], rank))
        if "refused" in told:
            future.set_exception(Refusal(**told["refused"]))
        elif "failed" in told:
            future.set_exception(RuntimeError(told["failed"]))
        else:
            future.set_result(Written(**told["written"]))

    def _listen(self, rank: int, heard: threading.Event) -> None:
        """PF3. Two waits: where this process was stopped as well, the first is over before what was said meanwhile is read."""
        misses = 0
        while misses < 2:
            misses = 0 if heard.wait(self._silence_s / 2) else misses + 1
            heard.clear()
        self._lost(rank, f"said nothing for {self._silence_s} s, so it is stopped or frozen")

    def _lost(self, rank: int, how: str) -> None:
        if self._is_ending:
            return
        print(f"process '{rank}' of the engine's '{len(self._children) + 1}' {how}", file=sys.stderr, flush=True)
        self._end_all(ENDED)

    def _end_all(self, status: int) -> NoReturn:
        self.end()
        os._exit(status)

    def _send(self, child: subprocess.Popen[bytes], message: dict[str, object]) -> None:
        assert child.stdin is not None
        try:
            with self._sending:
                child.stdin.write(json.dumps(message).encode() + b"\n")
                child.stdin.flush()
        except BrokenPipeError:
            pass  # PF2: whoever watches it ends this process


def end_with_parent(told: signal.Signals = signal.SIGKILL) -> None:
    """PF1."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, told)  # PR_SET_PDEATHSIG


def say_alive(silence_s: float) -> None:
    """PF3, from now on: an empty line each time."""

    def say() -> None:
        while True:
            print(flush=True)
            time.sleep(silence_s / 8)

    threading.Thread(target=say, daemon=True).start()


def read_jobs(lines: IO[str]) -> queue.SimpleQueue[dict[str, Any]]:
    """Read beside the jobs, so that the end of the input ends what waits for others."""
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            jobs.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return jobs


def follow(engine: Engine, jobs: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Does what it is told. A refusal is the first's, too, which answers with it (SD2)."""
    while True:
        given = jobs.get()
        call = given.pop("call")
        if call == WRITE:
            _write_beside(engine, **given)
            continue
        act = CALLS[call]
        try:
            engine.submit(lambda: act(engine, **given)).result()  # noqa: B023 it is awaited
        except Refusal:
            pass
        except BaseException as error:  # noqa: BLE001 the first is told by its end
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            time.sleep(2 * CAUSE_S)  # as above
            os._exit(FAILED)


def _write_beside(engine: Engine, copy: str, path: str) -> None:
    """Its jobs go on meanwhile. The first process, which waits, is told in a line."""

    def write() -> None:
        told: dict[str, Any] = {"copy": copy}
        try:
            [written] = engine.copies.write(copy, {engine.shards.rank: path}).values()
            told["written"] = asdict(written)
        except Refusal as refusal:
            told["refused"] = {"code": refusal.code, "message": str(refusal)}
        except Exception as error:  # noqa: BLE001
            told["failed"] = f"{type(error).__name__}: {error}"
        sys.stdout.buffer.write(WROTE + json.dumps(told).encode() + b"\n")
        sys.stdout.buffer.flush()

    threading.Thread(target=write, daemon=True).start()


def _batch(shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    return {
        name: torch.empty(shape, dtype=torch.int32 if name == "tokens" else torch.float32) for name, shape in shapes.items()
    }


def _spec(given: dict[str, Any] | None) -> PolicyGradient | None:
    return given and PolicyGradient(**{**given, "value": given["value"] and ValueTerm(**given["value"])})


# Arrays come over the collectives of the job.
CALLS: dict[str, Any] = {
    "score": lambda engine, batch, output: engine.score(_batch(batch), output),
    "forward_backward": lambda engine, batch, spec: engine.forward_backward(_batch(batch), _spec(spec)),
    "optim_step": lambda engine, step: engine.optim_step(Step(**step)),
    "read": lambda engine, state: engine.read(state),
    "save": lambda engine: engine.save(),
    "save_shards": lambda engine, copy, base: engine.save_shards(copy, base),
    "load_shards": lambda engine, paths: engine.load_shards(paths),
    "resume_from": lambda engine, policy_version, steps: engine.resume_from(Checkpoint(policy_version, steps, None)),
    "take_gradients": lambda engine: engine.take_gradients(None),
    "load": lambda engine, policy_version: engine.load(None, policy_version),
    "publish": lambda engine: engine.publish(None),
    "release": lambda engine, tags: engine.release(tags),
    "restore": lambda engine, tags: engine.restore(tags),
}
