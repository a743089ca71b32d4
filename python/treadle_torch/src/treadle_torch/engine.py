"""One model on one thread.

The thread owns parameters, gradients, optimiser and cache; nobody else touches them. Others hand it jobs and wait.

EJ1 jobs run one after another, each whole; between two of them one token of every sequence is generated.
EJ2 parameters change only between two tokens, and then what is being generated starts over from its prompts.
EJ3 on a released engine what computes is refused; what reads the host's copy still answers.

Over several processes each has an engine. That of the first has all jobs; those that concern the others it tells them (`tell`), and
their engines do the same with parts of their own (SD1).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from .adapters import digest_of, exported, merged
from .checkpoint import Checkpoint, Saved, apply_checkpoint, apply_parts, copied, encode, read_checkpoint, save
from .clients import OWNER, Needs
from .device import HOST, DeviceMemory, Placement, measure, size_of
from .errors import Refusal, invalid
from .generation import Decoder, Generation
from .losses import METRICS, Entries, PolicyGradient, weighted_loss
from .model import CausalModel
from .offload import Offload
from .optimiser import AdamW, Step
from .packing import Pass, lengths_of, pack
from .parameters import ALONE, Parameters, Tensors
from .room import needs_of, ran_out, refuse_without_room
from .shard_files import Copies, facts_of, read_shards
from .sharding import Shards, rows_of_each
from .weight_blocks import Blocks, verified
from .weight_files import AdapterParts, Obstacle, Root, Store, Ticket
from .weight_offers import Offers

T = TypeVar("T")

# Of one pass: what it keeps of its tokens must fit beside the model.
PASS_TOKENS = 8192

# A second, between device and host, where nothing has been moved yet.
ASSUMED_BYTES = 10e9

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
class TagMemory:
    """What the device has under a tag while that is loaded, and how long a release and a restore of it take."""

    tag: str
    num_bytes: int
    release_seconds: float
    restore_seconds: float


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
        use: str = "any",
        shards: Shards = ALONE,
        blocks: Blocks | None = None,
        tell: Callable[..., None] = lambda call, **given: None,
        broken: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """`tell` brings a job to the other processes; `broken` is told what not all of them know of, and ends them.

        `use`, of `USES`, says what there must be room for, beside what there is already (DRM1).
        `blocks`: where weights are published on the device, by an engine that is one process and has no adapters.
        """
        self.model = model
        self.placement = placement
        self.shards = shards
        # What others get, what is trained of it, and the rest, which is below an adapter.
        self.layout = model.weights()
        self.parameters = Parameters(model.trained(), shards)
        self.frozen = Tensors(model.frozen(), shards)
        self.base = digest_of(self.frozen.used(), model.scale) if self.frozen.names and shards.is_lead else None
        self.optimiser = AdamW(self.parameters)
        self.copies = Copies()
        self.policy_version = 0
        # Grows whenever parameters change: versions of a step that is undone and made again are equal.
        self.weights_serial = 0
        self._offers = Offers(None if self.frozen.names or not shards.is_alone else blocks)
        self._tell = tell
        self._broken = broken
        self._use = use
        self._failure: BaseException | None = None
        self._decoder = Decoder(model, placement, num_slots, uses_graphs=uses_graphs)
        self._offload = {tag: Offload(placement) for tag in ("weights", "optimiser")}
        # For each byte, as the last move took.
        self._move_seconds = {"release": 1 / ASSUMED_BYTES, "restore": 1 / ASSUMED_BYTES}
        self._cache_bytes = 0
        self._needs = Needs()
        # No client needs them on the device.
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
        return Health(busy, len(self._jobs), self._decoder.is_paused(OWNER), tuple(tag for tag in TAGS if tag in self._released))

    @property
    def device_uuid(self) -> str:
        """Of the device whose memory it maps; empty where it maps none."""
        return self._offers.uuid

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """EJ1."""
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
        if self.placement.is_cuda:
            torch.cuda.set_device(self.placement.device)  # a thread has its own, and sharding asks for it
        while not self._is_closed:
            with self._wake:
                while not self._jobs and not self._decoder.can_step():
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
                    if self._failure is not None:
                        raise RuntimeError(f"an earlier job has failed in some of the engine's processes: {self._failure}")
                    result.set_result(act())
                except BaseException as error:  # noqa: BLE001
                    remedy = "set engine.checkpointActivations, engine.dtype to 'bfloat16', engine.lora or more engine.shards, or take a smaller model"
                    result.set_exception(_out_of_memory(error, remedy) or error)
                    if not self.shards.is_alone and not isinstance(error, Refusal):
                        self._failure = self._failure or error
                        self._broken(error)
            self._began = None

    # What follows runs on the thread.

    def refuse_released(self, method: str, *tags: str, client: str = OWNER) -> None:
        """EJ3, MC2."""
        if not self._needs.has(client, *(tags or TAGS)):
            raise Refusal("engine.released", f"'{method}' was called on a released engine; call restore first")

    def refuse_adapted(self) -> None:
        """LA3."""
        if self.frozen.names:
            raise invalid("a model with an adapter loads no weights: what is below it never changes; set engine.path to them")

    def generate(self, generation: Generation) -> None:
        if not self.shards.is_alone:
            raise invalid(
                f"an engine of '{self.shards.size}' processes trains and scores; what generates has one device, or is a server"
            )
        self.refuse_released("generate", "weights", "cache", client=generation.client)
        self._needs.generates(generation.client)
        self._decoder.begin(generation, self.policy_version)

    def extend(self, generation: Generation, index: int, attempt: int, tokens: list[int] | None) -> None:
        self._decoder.extend(generation, index, attempt, tokens, self.policy_version)

    def abort(self, generation: Generation, index: int | None = None) -> None:
        self._decoder.abort(generation, self.policy_version, index)

    def cancel(self, generation: Generation) -> None:
        self._decoder.cancel(generation)

    def pause(self, client: str = OWNER) -> None:
        self._decoder.pause(client)

    def resume(self, client: str = OWNER) -> None:
        self._decoder.resume(client)

    def attach(self, client: str) -> None:
        self._needs.attach(client)

    def detach(self, client: str) -> None:
        """MC3."""
        self._decoder.fail(Refusal("engine.released", "'generate' was running when its client left"), client)
        self._decoder.resume(client)
        self._moved("release", self._needs.forget(client), self._release)

    def release(self, tags: Iterable[str], client: str = OWNER) -> Moved:
        """Gives device memory back: weights and optimiser move to the host, the cache is dropped (MC1)."""
        lost = list(tags)
        if "weights" in self._released or (client == OWNER and "weights" in lost):
            self._offers.leave()  # somebody may have mapped what was published when they were
        if "weights" in lost or "cache" in lost:
            self._decoder.fail(Refusal("engine.released", "'generate' was running when the engine was released"), client)
        leaving = self._needs.release(client, lost)
        self._tell("release", tags=leaving)
        self._cache_bytes = self._decoder.cache_bytes or self._cache_bytes
        return self._moved("release", leaving, self._release)

    def restore(self, tags: Iterable[str], client: str = OWNER) -> Moved:
        """DRM1, DRM2: all or nothing, by an engine that is one process; where one of several has no room, all of them end."""
        if not self._needs.knows(client):
            raise Refusal("service.failed", "'restore' was called by a client that has left")
        wanted = [tag for tag in tags if not self._needs.has(client, tag)]
        coming = self._needs.restore(client, wanted)
        self._tell("restore", tags=coming)
        try:
            given = (self._use, self.placement, self.parameters, self._decoder.cache_need)
            needs = [need for tag in coming for need in needs_of(tag, size_of(self._held(tag)) if tag != "cache" else 0, *given)]
            refuse_without_room(needs, self.placement, self.shards)
            return self._moved("restore", coming, self._restore)
        except BaseException as error:
            self._needs.release(client, wanted)
            if not isinstance(error, torch.OutOfMemoryError) or not self.shards.is_alone:
                raise
            for tag in coming:
                if tag not in self._released:
                    self._release(tag)
            if self.placement.is_cuda:
                torch.cuda.empty_cache()
            raise ran_out(needs, self.placement, error) from None

    def tags(self, client: str = OWNER) -> list[TagMemory]:
        """Of this process. Nothing of a cache is moved: it is dropped, and made again. Weights have room for those that are published.

        What clients have in common each of them tells.
        """
        held = {"weights": self._weights_held()}
        if client == OWNER:
            held["optimiser"] = self.optimiser.held()
        cache = (self._decoder.cache_bytes or self._cache_bytes) if self._needs.has_generated(client) else 0
        told = [TagMemory("cache", cache, 0, 0)]
        for tag, tensors in held.items():
            size = size_of(tensors) if self.placement.is_cuda else 0
            size += self._offers.most_bytes if tag == "weights" else 0
            told.append(TagMemory(tag, size, *(size * seconds for seconds in self._move_seconds.values())))
        return told

    def memory(self, client: str = OWNER) -> tuple[int, int]:
        """Bytes that a release of the client gives back, or on a released device has left there, and those on the host.

        What only others need is theirs; what several need, each of them tells.
        """
        cache = self._decoder.cache_bytes if self._needs.has_cache(client) else 0
        weights = size_of(self._weights_held()) if self.placement.is_cuda and "weights" not in self._released else 0
        if client != OWNER:
            return cache + (weights if self._needs.has(client, "weights") else 0), 0
        held = [*self.parameters.held(), *self.frozen.held(), *self.optimiser.held()]
        on_host = size_of(each for each in held if each.device.type == "cpu")
        if not self.placement.is_cuda:
            return cache, on_host
        others = self._decoder.cache_bytes - cache + (0 if self._needs.has(OWNER, "weights") else weights)
        return max(0, torch.cuda.memory_allocated(self.placement.device) - others) + self._offers.num_bytes, on_host

    def _weights_held(self) -> list[torch.Tensor]:
        return [*self.parameters.held(), *self.frozen.held(), *self.model.buffers()]

    def score(self, batch: dict[str, torch.Tensor], output: str, client: str = OWNER) -> torch.Tensor:
        """`[rows, columns]`; 0 in the first column, and where there are weights, and they are 0."""
        self.refuse_released(output, "weights", client=client)
        if output == "values" and self.model.value is None:
            raise invalid("the model has no value head where values were asked for")
        self._tell("score", batch=shapes_of(batch), output=output)
        self.shards.share(list(batch.values()))
        tokens = batch["tokens"]
        wanted = batch["weights"] != 0 if "weights" in batch else torch.ones(tokens.shape, dtype=torch.bool)
        result = torch.zeros(tokens.shape)
        with torch.no_grad():
            for one, source in self._passes(batch, wanted):
                logprobs, _, values = self._predict(one, source)
                if source is batch:
                    result[one.rows, one.columns] = (logprobs if output == "logprobs" else values).cpu()
        return self.shards.sum(result)

    def forward_backward(self, batch: dict[str, torch.Tensor], spec: PolicyGradient | None) -> dict[str, float]:
        """Adds the gradient of the sum of weight times term to what has accumulated. Where it fails, nothing is left of either."""
        self.refuse_released("forwardBackward", "weights", "optimiser")
        self._tell("forward_backward", batch=shapes_of(batch), spec=spec and asdict(spec))
        self.shards.share(list(batch.values()))
        sums: list[torch.Tensor] = []
        names = [name for name in batch if name not in ("tokens", "temperatures")]
        try:
            for one, source in self._passes(batch, batch["weights"] != 0):
                given = {name: self._put(source[name][one.rows, one.columns]) for name in names}
                loss, metrics = weighted_loss(spec, Entries(one.groups, given, *self._predict(one, source)))
                if loss.requires_grad:
                    loss.backward()
                sums.append(torch.stack([metrics[name] for name in METRICS]))
        except BaseException:
            self.parameters.drop()  # half of a batch is in it
            raise
        # What is read waits for the device, once.
        total = torch.stack(sums).sum(0) if sums else torch.zeros(len(METRICS), dtype=torch.float64)
        return dict(zip(METRICS, self.shards.sum(total).tolist(), strict=True))

    def optim_step(self, step: Step) -> tuple[float, int]:
        self.refuse_released("optimStep", "weights", "optimiser")
        self._tell("optim_step", step=asdict(step))
        grad_norm = self.optimiser.step(step)
        return grad_norm, self._changed(self.policy_version + 1)

    def read(self, state: str) -> bytes:
        """Whole, where this is the first process."""
        if self.shards.has_parts:
            self._tell("read", state=state)
        if state == "weights":
            return encode(self._weights(self.parameters.wholes(self.parameters.exact())))
        gradients = zip(self.parameters.gradients, self.parameters.exact(), strict=True)
        wholes = self.parameters.wholes([torch.zeros_like(part) if each is None else each for each, part in gradients])
        return encode(wholes) if self.shards.is_lead else b""

    def save(self) -> Saved | None:
        """Where this is the first process. It is a copy: the engine goes on while it is written."""
        if self.shards.has_parts:
            self._tell("save")
        parts = [*self.parameters.masters(), *(each for moments in self.optimiser.moments() for each in moments)]
        wholes = self.parameters.wholes(parts)
        if not self.shards.is_lead:
            return None
        return save(self.optimiser, self.policy_version, wholes, self.base, self.frozen.names)

    def save_shards(self, copy: str, base: str | None = None) -> None:
        """Each process keeps a copy of what it has. `base`: from the first, which alone knows it."""
        base = self.base if self.shards.is_lead else base
        if self.shards.has_parts:
            self._tell("save_shards", copy=copy, base=base)
        facts = facts_of(self.parameters, copy, self.policy_version, self.optimiser.steps, base, self.frozen.names)
        parts = [*self.parameters.masters(), *(each for moments in self.optimiser.moments() for each in moments)]
        self.copies.make(facts, self.shards, parts)

    def load_shards(self, paths: list[str]) -> int:
        """All or nothing, in all processes."""
        self.refuse_released("load")
        self._tell("load_shards", paths=paths)
        own = read_shards(paths, self.parameters, self.base)
        apply_parts(self.optimiser, own.parts, own.steps)
        return self._changed(own.policy_version)

    @property
    def most_checkpoint_bytes(self) -> int:
        """It has moments, and a header that is a few names; it ends with its own checksum. One of a whole model is no adapter's."""
        layout = [*self.layout, *self.parameters.layout]
        return 12 * sum(shape.numel() for _, shape in layout) + 256 * len(layout) + 4096

    def load_checkpoint(self, checkpoint: bytes | bytearray | memoryview) -> int:
        """All or nothing."""
        self.refuse_released("load")
        return self.resume_from(read_checkpoint(checkpoint, self.parameters, self.base))

    def write(self, state: str, data: bytes, policy_version: int) -> int:
        """All or nothing."""
        size = self.parameters.num_elements
        if len(data) != 4 * size:
            raise invalid(f"{state} have '{len(data)}' bytes where the model has '{size}' parameters of 4")
        wholes = self.parameters.split(copied(data))
        if state == "gradients":
            self.take_gradients(wholes)
            return self.policy_version
        return self.load(wholes, policy_version)

    def resume_from(self, checkpoint: Checkpoint) -> int:
        self._tell("resume_from", policy_version=checkpoint.policy_version, steps=checkpoint.steps)
        apply_checkpoint(checkpoint, self.optimiser)
        return self._changed(checkpoint.policy_version)

    def take_gradients(self, wholes: list[torch.Tensor] | None) -> None:
        if not self.shards.is_alone and not self.shards.has_parts:
            self.refuse_released("setGradients")
        self._tell("take_gradients")
        device = HOST.device if "optimiser" in self._released else self.placement.device
        self.parameters.gradients = [part.to(device, copy=True) for part in self.parameters.parts(wholes)]

    def load(self, wholes: list[torch.Tensor] | None, policy_version: int, *, adopts: bool = False) -> int:
        """EJ2. One for each parameter; they were checked. `adopts`: they are nobody else's."""
        self.refuse_released("loadWeights", "weights")
        self._tell("load", policy_version=policy_version)
        self.parameters.write(self.parameters.parts(wholes), adopts=adopts and not self.shards.has_parts)
        return self._changed(policy_version)

    def _changed(self, policy_version: int) -> int:
        """EJ2."""
        self.policy_version = policy_version
        self.weights_serial += 1
        self._decoder.restart()
        return policy_version

    def publish(self, store: Store | None) -> Ticket | Obstacle | None:
        """The weights that passes compute with, in the numbers that they compute in.

        A trainer in bfloat16 publishes its rounded copy, not its float32 weights. A receiver in bfloat16 would round to the same
        numbers, so half the bytes suffice; one in float32 gets the numbers that the trainer's log-probabilities are of.
        """
        if store is not None and self._offers.blocks is not None:
            named = list(zip(self.parameters.names, self.parameters.used(), strict=True))
            ticket = self._offers.publish(store, self.policy_version, named, is_released="weights" in self._released)
            if ticket is not None:
                return ticket
        if self.shards.has_parts:
            self._tell("publish")
        trained = self.parameters.wholes(self.parameters.used())
        tensors = self._weights(trained)
        if store is None:
            return None
        named = [(name, each) for (name, _), each in zip(self.layout, tensors, strict=True)]
        return store.write(self.policy_version, named, self._adapter(trained))

    def write_file(self, store: Store | None, folder: str) -> Ticket | Obstacle:
        return self._offers.write_file(store, folder)

    def load_from_device(self, ticket: Ticket, roots: list[Root]) -> int:
        """EJ2, WB3."""
        self.refuse_released("loadWeights", "weights")
        if self._offers.blocks is None:
            raise Refusal("engine.weights-mismatch", f"weights of version '{ticket.policy_version}' refused: this engine maps no device's memory")
        with verified(ticket, roots, self._offers.blocks) as weights:
            return self.load(weights, ticket.policy_version)

    def _adapter(self, trained: list[torch.Tensor]) -> AdapterParts | None:
        """LA4."""
        if not self.frozen.names:
            return None
        named = exported(dict(zip(self.parameters.names, [each.detach() for each in trained], strict=True)))
        return AdapterParts(self.model.adapter_rank, named, self.model.adapter_config)

    def _weights(self, trained: list[torch.Tensor]) -> list[torch.Tensor]:
        """Whole ones, on the first process; so is `trained`."""
        if not self.frozen.names:
            return trained
        frozen = self.frozen.wholes(self.frozen.used())
        if not self.shards.is_lead:
            return []
        names = [*self.parameters.names, *self.frozen.names]
        tensors = dict(zip(names, [each.detach() for each in (*trained, *frozen)], strict=True))
        # One after another: a device has no room for the model twice.
        return [merged(name, tensors, self.model.scale).cpu() for name, _ in self.layout]


    def _passes(
        self, batch: dict[str, torch.Tensor], wanted: torch.Tensor
    ) -> Iterator[tuple[Pass, dict[str, torch.Tensor]]]:
        """Those of this process, each with what it is a pass of. All processes make as many, so some are of nothing (SD1)."""
        tokens, device = batch["tokens"], self.placement.device
        if not self.shards.is_alone:
            rows = list(rows_of_each(lengths_of(wanted), self.shards.size))[self.shards.rank]
            is_own = torch.zeros(len(tokens), 1, dtype=torch.bool)
            is_own[rows] = True
            wanted = wanted & is_own
        passes = pack(tokens, wanted, PASS_TOKENS, device)
        missing = int(self.shards.most(len(passes))[0]) - len(passes)
        for one in passes:
            yield one, batch
        if missing > 0:
            nothing = {name: each.new_zeros((1, 2)[: each.dim()]) for name, each in batch.items()}
            if "temperatures" in nothing:
                nothing["temperatures"].fill_(1)
            [one] = pack(nothing["tokens"], torch.ones(1, 2, dtype=torch.bool), PASS_TOKENS, device)
            for _ in range(missing):
                yield one, nothing

    def _put(self, array: torch.Tensor) -> torch.Tensor:
        return array.to(self.placement.device, non_blocking=True)

    def _predict(self, one: Pass, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Of each entry: its log-probability at its row's temperature, the entropy of its distribution, and its value."""
        tokens = self._put(batch["tokens"][one.rows, one.columns].long())
        temperatures = batch.get("temperatures")
        scale = None if temperatures is None else self._put(temperatures[one.rows])
        return self.model(one.view, one.tokens, one.places, tokens, scale)

    def _moved(self, kind: str, tags: list[str], act: Callable[[str], int]) -> Moved:
        before, began = measure(self.placement), time.monotonic()
        num_bytes = sum(act(tag) for tag in tags)
        if self.placement.is_cuda:
            torch.cuda.synchronize(self.placement.device)
            torch.cuda.empty_cache()
        if num_bytes > 0:
            self._move_seconds[kind] = (time.monotonic() - began) / num_bytes
        # Whoever gets the devices next gets them from all processes.
        num_bytes = int(self.shards.sum(torch.tensor(float(num_bytes), dtype=torch.float64)))
        note = "" if self.placement.is_cuda else "the engine computes on the host: weights and optimiser stay where they are"
        return Moved(before, measure(self.placement), num_bytes, time.monotonic() - began, note)

    def _release(self, tag: str) -> int:
        self._released.add(tag)
        if tag == "weights":
            self._offers.leave()
        if tag != "optimiser":
            self._decoder.free()
        if tag == "cache":
            return 0
        own = self.shards.move(HOST.device) if tag == "weights" and self.shards.has_parts else 0
        return own + self._offload[tag].release(self._held(tag))

    def _restore(self, tag: str) -> int:
        num_bytes = self._bring(tag)
        self._released.discard(tag)
        return num_bytes

    def _bring(self, tag: str) -> int:
        if tag == "cache":
            return 0
        if tag == "optimiser" or self.shards.is_alone:
            return self._offload[tag].restore(self._held(tag))
        if self.shards.has_parts:
            return self.shards.move(self.placement.device) + self._offload[tag].restore(self._held(tag))
        return self._shard()

    def _shard(self) -> int:
        """SD3."""
        both = (self.parameters, self.frozen)
        wholes = [[part.detach() for part in each.used()] if self.shards.is_lead else None for each in both]
        self.parameters.close()
        self.optimiser.forget()
        self.shards.apply(self.model, self.model.units(), self.placement)
        self.parameters.hold(self.model.trained())
        self.frozen.hold(self.model.frozen())
        for each, whole in zip(both, wholes, strict=True):
            each.write(each.parts(whole))
        return size_of(part for each in both for part in each.held())

    def _held(self, tag: str) -> list[torch.Tensor]:
        """What is moved tensor by tensor; the parts of a sharded model are not."""
        if tag == "optimiser":
            return self.optimiser.held()
        if self.shards.has_parts:
            return self.parameters.copies()
        return self._weights_held()


def shapes_of(batch: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(each.shape) for name, each in batch.items()}


def _out_of_memory(error: BaseException, remedy: str) -> Refusal | None:
    if not isinstance(error, torch.OutOfMemoryError):
        return None
    return Refusal("device.out-of-memory", f"the device has no room for what is computed: {error}; {remedy}")
