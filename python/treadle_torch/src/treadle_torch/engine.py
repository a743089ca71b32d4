"""One model on one thread.

The thread owns parameters, gradients, optimiser and cache; nobody else touches them. Others hand it jobs and wait.

PE1 jobs run one after another, each whole; between two of them one token of every sequence is generated.
PE2 parameters change only between two tokens, and then what is being generated starts over from its prompts.
PE3 on a released engine what computes is refused; what reads the host's copy still answers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from .checkpoint import decode_checkpoint, encode, encode_checkpoint
from .device import HOST, DeviceMemory, Placement, measure
from .errors import Refusal, invalid
from .generation import Decoder, Generation
from .losses import METRICS, Entries, PolicyGradient, weighted_loss
from .model import CausalModel
from .offload import Offload
from .optimiser import AdamW, Step
from .packing import Pass, pack
from .parameters import Parameters
from .weight_files import Obstacle, Store, Ticket

T = TypeVar("T")

# Of one pass: what it keeps of its tokens must fit beside the model.
PASS_TOKENS = 8192

# What can be released by itself. Gradients belong to the optimiser.
TAGS = ("weights", "optimiser", "cache")


@dataclass(frozen=True)
class Moved:
    """What a release or a restore did; `note` says why nothing was moved where nothing was."""

    before: DeviceMemory
    after: DeviceMemory
    num_bytes: int
    seconds: float
    note: str


@dataclass(frozen=True)
class Health:
    """Read beside the thread: `busy_seconds` is how long its job has run, 0 where it has none."""

    busy_seconds: float
    num_waiting: int
    is_paused: bool
    released: tuple[str, ...]


class Engine:
    def __init__(
        self,
        model: CausalModel,
        num_slots: int,
        placement: Placement = HOST,
        *,
        uses_graphs: bool = False,
        is_loaded: bool = True,
    ) -> None:
        self.model = model
        self.placement = placement
        self.parameters = Parameters(model.named())
        self.optimiser = AdamW(self.parameters)
        self.policy_version = 0
        self._decoder = Decoder(model, placement, num_slots, uses_graphs=uses_graphs)
        self._offload = {tag: Offload(placement) for tag in ("weights", "optimiser")}
        self._paused = False
        self._released: set[str] = set(TAGS)
        self._began: float | None = None
        self._is_closed = False
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        if is_loaded:
            self.restore(TAGS)
        threading.Thread(target=self._run, name="device", daemon=True).start()

    @property
    def health(self) -> Health:
        began = self._began
        busy = 0.0 if began is None else time.monotonic() - began
        return Health(busy, len(self._jobs), self._paused, tuple(tag for tag in TAGS if tag in self._released))

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """PE1."""
        result: Future[T] = Future()
        with self._wake:
            self._jobs.append((job, result))
            self._wake.notify()
        return result

    def close(self) -> None:
        """After the jobs that wait, the thread ends, and what it owns goes with the last that knows of it."""

        def end() -> None:
            self._is_closed = True
            self._decoder.release(Refusal("engine.released", "'generate' was running when the engine was closed"))
            self.parameters.close()

        self.submit(end).result()

    def _run(self) -> None:
        while not self._is_closed:
            with self._wake:
                while not self._jobs and (self._paused or not self._decoder.can_step()):
                    self._wake.wait()
                job = self._jobs.popleft() if self._jobs else None
            self._began = time.monotonic()
            if job is None:
                try:
                    self._decoder.step(self.policy_version)
                except Exception as error:  # noqa: BLE001 whatever it is, those who wait are told
                    refusal = Refusal("engine.invalid-request", f"generation failed: {error!r}")
                    self._decoder.release(_out_of_memory(error, "lower model.slots or model.contextLength") or refusal)
            else:
                act, result = job
                try:
                    result.set_result(act())
                except BaseException as error:  # noqa: BLE001
                    remedy = "set engine.checkpointActivations, or take a smaller model"
                    result.set_exception(_out_of_memory(error, remedy) or error)
            self._began = None

    # What follows runs on the thread.

    def refuse_released(self, method: str, *tags: str) -> None:
        """PE3."""
        if self._released.intersection(tags or TAGS):
            raise Refusal("engine.released", f"'{method}' was called on a released engine; call restore first")

    def generate(self, generation: Generation) -> None:
        self.refuse_released("generate", "weights", "cache")
        self._decoder.begin(generation)

    def extend(self, generation: Generation, index: int, attempt: int, tokens: list[int] | None) -> None:
        self._decoder.extend(generation, index, attempt, tokens, self.policy_version)

    def abort(self, generation: Generation) -> None:
        self._decoder.abort(generation, self.policy_version)

    def cancel(self, generation: Generation) -> None:
        self._decoder.cancel(generation)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def release(self, tags: Iterable[str]) -> Moved:
        """Gives device memory back: weights and optimiser move to the host, the cache is dropped."""
        return self._moved([tag for tag in tags if tag not in self._released], self._release)

    def restore(self, tags: Iterable[str]) -> Moved:
        return self._moved([tag for tag in tags if tag in self._released], self._restore)

    def memory(self) -> tuple[int, int]:
        """Bytes that a release gives back, or on a released device are left there, and those on the host."""
        held = [*self.parameters.held(), *self.optimiser.held()]
        on_host = sum(each.numel() * each.element_size() for each in held if each.device.type == "cpu")
        if self.placement.is_cuda:
            return torch.cuda.memory_allocated(self.placement.device), on_host
        return self._decoder.cache_bytes, on_host

    def score(self, batch: dict[str, torch.Tensor], output: str) -> torch.Tensor:
        """`[rows, columns]`; 0 in the first column, and where there are weights, and they are 0."""
        self.refuse_released(output, "weights")
        tokens = batch["tokens"]
        wanted = batch["weights"] != 0 if "weights" in batch else torch.ones(tokens.shape, dtype=torch.bool)
        result = torch.zeros(tokens.shape)
        with torch.no_grad():
            for one in self._passes(tokens, wanted):
                logprobs, _, values = self._predict(one, batch)
                if output == "values":
                    if values is None:
                        raise invalid("the model has no value head where values were asked for")
                    result[one.rows, one.columns] = values.cpu()
                else:
                    result[one.rows, one.columns] = logprobs.cpu()
        return result

    def forward_backward(self, batch: dict[str, torch.Tensor], spec: PolicyGradient | None) -> dict[str, float]:
        """Adds the gradient of the sum of weight times term to what has accumulated."""
        self.refuse_released("forwardBackward", "weights", "optimiser")
        sums: list[torch.Tensor] = []
        names = [name for name in batch if name not in ("tokens", "temperatures")]
        for one in self._passes(batch["tokens"], batch["weights"] != 0):
            given = {name: self._put(batch[name][one.rows, one.columns]) for name in names}
            loss, metrics = weighted_loss(spec, Entries(one.groups, given, *self._predict(one, batch)))
            if loss.requires_grad:
                loss.backward()
            sums.append(torch.stack([metrics[name] for name in METRICS]))
        # What is read waits for the device, once.
        total = torch.stack(sums).sum(0).tolist() if sums else [0.0] * len(METRICS)
        return dict(zip(METRICS, total, strict=True))

    def optim_step(self, step: Step) -> tuple[float, int]:
        self.refuse_released("optimStep", "weights", "optimiser")
        grad_norm = self.optimiser.step(step)
        self.policy_version += 1
        self._decoder.restart()
        return grad_norm, self.policy_version

    def read(self, state: str) -> bytes:
        if state == "checkpoint":
            return encode_checkpoint(self.optimiser, self.policy_version)
        if state == "weights":
            return encode(self.parameters.exact())
        gradients = zip(self.parameters.gradients, self.parameters.named, strict=True)
        return encode([torch.zeros(each.shape) if gradient is None else gradient for gradient, (_, each) in gradients])

    def write(self, state: str, data: bytes, policy_version: int) -> int:
        """All or nothing."""
        if state == "checkpoint":
            self.refuse_released("load")
            self.policy_version = decode_checkpoint(data, self.optimiser)
            self._decoder.restart()
            return self.policy_version
        size = self.parameters.num_elements
        if len(data) != 4 * size:
            raise invalid(f"{state} have '{len(data)}' bytes where the model has '{size}' parameters of 4")
        flat = torch.frombuffer(bytearray(data), dtype=torch.float32)
        if state == "gradients":
            device = HOST.device if "optimiser" in self._released else self.placement.device
            self.parameters.gradients = [part.to(device, copy=True) for part in self.parameters.split(flat)]
            return self.policy_version
        return self.load(self.parameters.split(flat), policy_version)

    def load(self, weights: list[torch.Tensor], policy_version: int) -> int:
        """PE2. One for each parameter; they were checked."""
        self.refuse_released("loadWeights", "weights")
        self.parameters.write(weights)
        self.policy_version = policy_version
        self._decoder.restart()
        return self.policy_version

    def publish(self, store: Store) -> Ticket | Obstacle:
        """The weights that passes compute with, in the numbers that they compute in.

        A trainer in bfloat16 publishes its rounded copy, not its float32 weights. A receiver in bfloat16 would round to the same
        numbers, so half the bytes suffice; one in float32 gets the numbers that the trainer's log-probabilities are of.
        """
        return store.write(self.policy_version, self.parameters.named)

    def _passes(self, tokens: torch.Tensor, wanted: torch.Tensor) -> list[Pass]:
        return pack(tokens, wanted, PASS_TOKENS, self.placement.device)

    def _put(self, array: torch.Tensor) -> torch.Tensor:
        return array.to(self.placement.device, non_blocking=True)

    def _predict(self, one: Pass, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Of each entry: its log-probability at its row's temperature, the entropy of its distribution, and its value."""
        hidden = self.model.body(one.tokens[None], one.view.positions[None], one.view)[0][one.places]
        tokens = self._put(batch["tokens"][one.rows, one.columns].long())
        temperatures = batch.get("temperatures")
        scale = None if temperatures is None else self._put(temperatures[one.rows])
        return *self.model.scores(hidden, tokens, scale), self.model.values(hidden)

    def _moved(self, tags: list[str], act: Callable[[str], int]) -> Moved:
        before, began = measure(self.placement), time.monotonic()
        num_bytes = sum(act(tag) for tag in tags)
        if self.placement.is_cuda:
            torch.cuda.synchronize(self.placement.device)
            torch.cuda.empty_cache()
        note = "" if self.placement.is_cuda else "the engine computes on the host: weights and optimiser stay where they are"
        return Moved(before, measure(self.placement), num_bytes, time.monotonic() - began, note)

    def _release(self, tag: str) -> int:
        self._released.add(tag)
        if tag != "optimiser":
            self._decoder.release(Refusal("engine.released", "'generate' was running when the engine was released"))
        return 0 if tag == "cache" else self._offload[tag].release(self._held(tag))

    def _restore(self, tag: str) -> int:
        self._released.discard(tag)
        return 0 if tag == "cache" else self._offload[tag].restore(self._held(tag))

    def _held(self, tag: str) -> list[torch.Tensor]:
        return [*self.parameters.held(), *self.model.buffers()] if tag == "weights" else self.optimiser.held()


def _out_of_memory(error: BaseException, remedy: str) -> Refusal | None:
    if not isinstance(error, torch.OutOfMemoryError):
        return None
    return Refusal("device.out-of-memory", f"the device has no room for what is computed: {error}; {remedy}")
