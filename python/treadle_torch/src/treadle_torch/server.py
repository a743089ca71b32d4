"""The gRPC door to an engine (packages/engines/protos/engines/v1/engine.proto).

TS1 whoever has not the token is refused, and of those that have attached, what is not theirs to call (MC2).
TS2 a turn that repeats the last one gets its answer, and nothing happens twice; an older one comes too late, and is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import torch
import transformers

from ._generated import engine_pb2 as pb
from .checkpoint import Saved, read_file
from .clients import OWNER
from .device import measure
from .engine import Engine
from .errors import Refusal, invalid
from .followers import Followers
from .generation import Generation
from .messages import (
    chunks,
    device_message,
    health_message,
    moved_message,
    publish_message,
    read_announced,
    read_batch,
    read_body,
    read_generation,
    read_header,
    read_ints,
    read_loss,
    read_place,
    read_tags,
    read_ticket,
    reply_messages,
    tag_message,
)
from .optimiser import Step
from .weight_files import Obstacle, Root, Store, read
from .weight_transfer import Receivers, Senders

# Each generation has a thread while it runs; calls beside them must find one, too.
THREADS = 2**14

# What those that have attached may call, of whom the model is not.
OF_ALL = frozenset(("Attach", "Describe", "Memory", "Health", "Generate", "Score", "Pause", "Resume", "Release", "Restore"))

STATES = {pb.WEIGHTS: "weights", pb.GRADIENTS: "gradients"}


class Turns:
    """TS2."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self._sequence = 0
        self._last: Future[Any] | None = None
        self._lock = threading.Lock()

    def take(self, turn: pb.Turn, begin: Callable[[], Future[Any]]) -> Any:
        with self._lock:
            if turn.epoch != self.epoch:
                raise invalid(f"the turn is of the process '{turn.epoch}', this is '{self.epoch}'; describe it again")
            if turn.sequence > self._sequence:
                self._last = begin()
                self._sequence = turn.sequence
            elif turn.sequence != self._sequence or self._last is None:
                raise invalid(f"turn '{turn.sequence}' came after turn '{self._sequence}'")
            last = self._last
        return last.result()


class EngineService:
    def __init__(
        self,
        engine: Engine,
        store: Store | None,
        roots: list[Root],
        senders: Senders | None,
        receivers: Receivers | None,
        is_shared: bool,
        followers: Followers | None,
    ) -> None:
        self._engine = engine
        self._followers = followers
        self._senders = senders
        self._receivers = receivers
        self._is_shared = is_shared
        self._store = store
        self._roots = roots
        self._turns = Turns()
        self._saved: tuple[str, Saved] | None = None
        self._reader = ThreadPoolExecutor(1)
        self._attached: set[str] = set()

    def Attach(self, request: pb.AttachRequest, context: grpc.ServicerContext) -> Iterator[pb.AttachReply]:
        """MC3. Its end is the end of the call, however that comes: of a client that is stopped, when it answers no ping."""
        client, ended = request.client, threading.Event()
        if not self._is_shared:
            raise invalid("nobody attaches to this engine: its configuration does not share it")
        if client == OWNER or client in self._attached:
            raise invalid(f"client '{client}' cannot attach: it has no name, or another's")
        if not context.add_callback(ended.set):
            return
        self._engine.submit(lambda: self._engine.attach(client)).result()
        self._attached.add(client)
        try:
            yield pb.AttachReply()
            ended.wait()
        finally:
            self._attached.discard(client)
            self._engine.submit(lambda: self._engine.detach(client))

    def client_of(self, method: str, context: grpc.ServicerContext) -> str:
        """MC2."""
        client = str(dict(context.invocation_metadata()).get("treadle-client", OWNER))
        if client == OWNER or method == "Attach":
            return client
        if client not in self._attached:
            raise Refusal("service.failed", f"'{method}' was called by a client that is not attached, or not any more")
        if method not in OF_ALL:
            raise invalid(f"'{method}' changes or reads a model that another client trains; call it there")
        return client

    def Describe(self, _: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.Description:
        engine = self._engine
        return pb.Description(
            epoch=self._turns.epoch,
            policy_version=engine.submit(lambda: engine.policy_version).result(),
            vocab_size=engine.model.vocab_size,
            context_length=engine.model.context_length,
            has_values=engine.model.value is not None,
            parameters=[pb.Parameter(name=name, shape=shape) for name, shape in engine.layout],
            trained=[pb.Parameter(name=name, shape=shape) for name, shape in engine.parameters.layout],
            torch_version=torch.__version__,
            transformers_version=transformers.__version__,
            device_uuid=engine.device_uuid,
        )

    def Memory(self, _: pb.MemoryRequest, context: grpc.ServicerContext) -> pb.MemoryReply:
        engine, client = self._engine, self.client_of("Memory", context)

        def look() -> pb.MemoryReply:
            resident, host = engine.memory(client)
            return pb.MemoryReply(
                resident_bytes=resident,
                host_bytes=host,
                device=device_message(measure(engine.placement)),
                tags=[tag_message(each) for each in engine.tags(client)],
                policy_version=engine.policy_version,
                weights_serial=engine.weights_serial,
            )

        return engine.submit(look).result()

    def Health(self, _: pb.HealthRequest, context: grpc.ServicerContext) -> pb.HealthReply:
        return health_message(self._engine.health, self._engine.placement)

    def Pause(self, _: pb.PauseRequest, context: grpc.ServicerContext) -> pb.PauseReply:
        client = self.client_of("Pause", context)
        self._engine.submit(lambda: self._engine.pause(client)).result()
        return pb.PauseReply()

    def Resume(self, _: pb.ResumeRequest, context: grpc.ServicerContext) -> pb.ResumeReply:
        client = self.client_of("Resume", context)
        self._engine.submit(lambda: self._engine.resume(client)).result()
        return pb.ResumeReply()

    def Release(self, request: pb.ReleaseRequest, context: grpc.ServicerContext) -> pb.ReleaseReply:
        tags, client = read_tags(request.tags), self.client_of("Release", context)
        return pb.ReleaseReply(moved=moved_message(self._engine.submit(lambda: self._engine.release(tags, client)).result()))

    def Restore(self, request: pb.RestoreRequest, context: grpc.ServicerContext) -> pb.RestoreReply:
        tags, client = read_tags(request.tags), self.client_of("Restore", context)
        return pb.RestoreReply(moved=moved_message(self._engine.submit(lambda: self._engine.restore(tags, client)).result()))

    def Generate(
        self, requests: Iterator[pb.GenerateRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateReply]:
        engine = self._engine
        client = self.client_of("Generate", context)
        generation = read_generation(requests, engine.model.context_length, engine.model.vocab_size, client)
        engine.submit(lambda: engine.generate(generation)).result()
        context.add_callback(lambda: engine.submit(lambda: engine.cancel(generation)))
        threading.Thread(target=self._follow, args=(requests, generation), daemon=True).start()
        while (told := generation.replies.get()) is not None:
            if isinstance(told, Exception):
                raise told
            yield from reply_messages(told)

    def _follow(self, requests: Iterator[pb.GenerateRequest], generation: Generation) -> None:
        """What a client says while its completions are made, until its call has ended."""
        engine = self._engine
        try:
            for request in requests:
                if request.WhichOneof("kind") == "abort":
                    index = request.abort.index if request.abort.HasField("index") else None
                    engine.submit(lambda i=index: engine.abort(generation, i))
                elif request.WhichOneof("kind") == "extension":
                    one = request.extension
                    tokens = read_ints(one.tokens) if one.HasField("tokens") else None
                    index, attempt = one.index, one.attempt
                    engine.submit(lambda i=index, a=attempt, t=tokens: engine.extend(generation, i, a, t))
        except grpc.RpcError:
            pass  # the callback of the call's end has cancelled it

    def Score(self, parts: Iterator[pb.BatchPart], context: grpc.ServicerContext) -> Iterator[pb.Chunk]:
        client = self.client_of("Score", context)
        header, batch = read_batch(parts)
        output = "values" if header.output == pb.BatchHeader.VALUES else "logprobs"
        result = self._engine.submit(lambda: self._engine.score(batch, output, client)).result()
        yield from chunks(result.numpy().tobytes())

    def ForwardBackward(self, parts: Iterator[pb.BatchPart], context: grpc.ServicerContext) -> pb.LossMetrics:
        header, batch = read_batch(parts)
        spec = read_loss(header.loss)
        act = lambda: self._engine.forward_backward(batch, spec)  # noqa: E731
        return pb.LossMetrics(**self._turns.take(header.turn, lambda: self._engine.submit(act)))

    def OptimStep(self, request: pb.OptimStepRequest, context: grpc.ServicerContext) -> pb.OptimStepReply:
        step = Step(
            learning_rate=request.learning_rate,
            scale=request.scale,
            max_grad_norm=request.max_grad_norm if request.HasField("max_grad_norm") else math.inf,
            beta1=request.beta1,
            beta2=request.beta2,
            epsilon=request.epsilon,
            weight_decay=request.weight_decay,
        )
        act = lambda: self._engine.optim_step(step)  # noqa: E731
        grad_norm, version = self._turns.take(request.turn, lambda: self._engine.submit(act))
        return pb.OptimStepReply(grad_norm=grad_norm, policy_version=version)

    def Save(self, _: pb.SaveRequest, context: grpc.ServicerContext) -> pb.SaveReply:
        self._saved = None  # one that nobody has asked for
        saved = self._engine.submit(self._engine.save).result()
        assert saved is not None
        copy = secrets.token_hex(8)
        self._saved = (copy, saved)
        return pb.SaveReply(copy=copy)

    def ReadSaved(self, request: pb.ReadSavedRequest, context: grpc.ServicerContext) -> Iterator[pb.Chunk]:
        for piece in self._take_saved(request.copy).stream():
            yield from chunks(piece)

    def WriteSaved(self, request: pb.WriteSavedRequest, context: grpc.ServicerContext) -> pb.WriteSavedReply:
        saved = self._take_saved(request.copy)
        return pb.WriteSavedReply(sha256=saved.write_to(request.path), num_bytes=saved.num_bytes)

    def SaveShards(self, _: pb.SaveRequest, context: grpc.ServicerContext) -> pb.SaveReply:
        copy = secrets.token_hex(8)
        self._engine.submit(lambda: self._engine.save_shards(copy)).result()
        return pb.SaveReply(copy=copy)

    def WriteShards(self, request: pb.WriteShardsRequest, context: grpc.ServicerContext) -> pb.WriteShardsReply:
        if self._followers is None:
            raise invalid("an engine of one process writes its checkpoint by WriteSaved")
        written = self._followers.write_shards(self._engine, request.copy, list(request.paths))
        return pb.WriteShardsReply(files=[pb.WriteSavedReply(sha256=each.sha256, num_bytes=each.num_bytes) for each in written])

    def _take_saved(self, copy: str) -> Saved:
        found, saved = self._saved or ("", None)
        if saved is None or found != copy:
            raise invalid("the copy is not there any more: it was taken, or another has been made since")
        self._saved = None
        return saved

    def Read(self, request: pb.ReadRequest, context: grpc.ServicerContext) -> Iterator[pb.Chunk]:
        if request.state == pb.CHECKPOINT:
            raise invalid("a checkpoint is read by ReadSaved, of the copy that Save makes")
        state = STATES[request.state]
        yield from chunks(self._engine.submit(lambda: self._engine.read(state)).result())

    def Write(self, parts: Iterator[pb.WritePart], context: grpc.ServicerContext) -> pb.WriteReply:
        header, engine = read_header(parts), self._engine
        if header.state == pb.WEIGHTS:
            engine.refuse_adapted()
        if header.state == pb.CHECKPOINT:
            whole = read_body(parts, engine.most_checkpoint_bytes)
            act = lambda: engine.load_checkpoint(whole)  # noqa: E731
        else:
            size = engine.parameters.num_elements
            if header.num_bytes > 4 * size:
                raise invalid(f"'{header.num_bytes}' bytes were announced where at most '{4 * size}' are allowed")
            data = read_announced(parts, header.num_bytes)
            if not hmac.compare_digest(hashlib.sha256(data).digest(), header.sha256):
                raise Refusal("engine.weights-mismatch", "the bytes that arrived are not those that were announced")
            state = STATES[header.state]
            act = lambda: engine.write(state, data, header.policy_version)  # noqa: E731
        return pb.WriteReply(policy_version=self._turns.take(header.turn, lambda: engine.submit(act)))

    def LoadFile(self, request: pb.LoadFileRequest, context: grpc.ServicerContext) -> pb.WriteReply:
        """Read beside the engine, as the files of weights are."""
        engine = self._engine

        def act() -> int:
            whole = read_file(request.path, engine.most_checkpoint_bytes)
            return engine.submit(lambda: engine.load_checkpoint(whole)).result()

        return pb.WriteReply(policy_version=self._turns.take(request.turn, lambda: self._reader.submit(act)))

    def LoadShards(self, request: pb.LoadShardsRequest, context: grpc.ServicerContext) -> pb.WriteReply:
        act = lambda: self._engine.load_shards(list(request.paths))  # noqa: E731
        return pb.WriteReply(policy_version=self._turns.take(request.turn, lambda: self._engine.submit(act)))

    def Publish(self, _: pb.PublishRequest, context: grpc.ServicerContext) -> pb.PublishReply:
        if (store := self._store) is None:
            return publish_message(Obstacle("the host has no folder in memory"))
        return publish_message(self._engine.submit(lambda: self._engine.publish(store)).result())

    def WriteFile(self, request: pb.WriteFileRequest, context: grpc.ServicerContext) -> pb.PublishReply:
        return publish_message(self._engine.submit(lambda: self._engine.write_file(self._store, request.folder)).result())

    def Offer(self, request: pb.OfferRequest, context: grpc.ServicerContext) -> pb.OfferReply:
        if self._senders is None:
            raise invalid("this engine sends no weights to other processes; set engine.collective")
        place = self._senders.offer(request.link)
        return pb.OfferReply(link=pb.Link(name=place.link, host=place.host, port=place.port, secret=place.secret))

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinReply:
        self._joined().join(read_place(request.link))
        return pb.JoinReply()

    def _joined(self) -> Receivers:
        if self._receivers is None:
            raise invalid("this engine takes no weights from other processes; set engine.collective")
        return self._receivers

    def Load(self, request: pb.LoadRequest, context: grpc.ServicerContext) -> pb.WriteReply:
        """Files are read beside the engine, which goes on meanwhile."""
        self._engine.refuse_adapted()

        def act() -> int:
            ticket = read_ticket(request, self._engine.parameters)
            if ticket.device is not None:
                return self._engine.submit(lambda: self._engine.load_from_device(ticket, self._roots)).result()
            weights = self._joined().receive(request.link, ticket) if request.link else read(ticket, self._roots)
            return self._engine.submit(lambda: self._engine.load(weights, request.policy_version, adopts=True)).result()

        return pb.WriteReply(policy_version=self._turns.take(request.turn, lambda: self._reader.submit(act)))


def _tell(error: BaseException, context: grpc.ServicerContext) -> None:
    if isinstance(error, Refusal):
        context.set_trailing_metadata((("treadle-code", error.code),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")


def _handler(service: EngineService, name: str, request: Any, takes_stream: bool, gives_stream: bool) -> grpc.RpcMethodHandler:
    method = getattr(service, name)

    def unary(value: Any, context: grpc.ServicerContext) -> Any:
        try:
            service.client_of(name, context)
            return method(value, context)
        except Exception as error:  # noqa: BLE001
            return _tell(error, context)

    def stream(value: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            service.client_of(name, context)
            yield from method(value, context)
        except Exception as error:  # noqa: BLE001
            _tell(error, context)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[takes_stream, gives_stream]
    return make(stream if gives_stream else unary, request.FromString, lambda reply: reply.SerializeToString())


class TokenCheck(grpc.ServerInterceptor):
    """TS1."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}"
        def refuse(_: Any, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token, or another's")

        self._refuse = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, proceed: Any, details: grpc.HandlerCallDetails) -> Any:
        given = dict(details.invocation_metadata).get("authorization", "")
        return proceed(details) if hmac.compare_digest(str(given), self._expected) else self._refuse


def serve(
    engine: Engine,
    address: str,
    token: str,
    store: Store | None = None,
    roots: list[Root] | None = None,
    senders: Senders | None = None,
    receivers: Receivers | None = None,
    *,
    is_shared: bool = False,
    followers: Followers | None = None,
) -> grpc.Server:
    service = EngineService(engine, store, roots or [], senders, receivers, is_shared, followers)
    methods = pb.DESCRIPTOR.services_by_name["Engine"].methods
    handlers = {
        method.name: _handler(
            service,
            method.name,
            getattr(pb, method.input_type.name),
            takes_stream=method.name in ("Generate", "Score", "ForwardBackward", "Write"),
            gives_stream=method.name in ("Attach", "Generate", "Score", "Read", "ReadSaved"),
        )
        for method in methods
    }
    options: list[tuple[str, int]] = []
    if is_shared:
        # A client that is stopped answers none: what it has begun ends (MC3).
        options += [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 300_000)]
    server = grpc.server(ThreadPoolExecutor(THREADS), interceptors=[TokenCheck(token)], options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("treadle.engines.v1.Engine", handlers),))
    if server.add_insecure_port(address) == 0:
        raise OSError(f"cannot listen at '{address}'")
    server.start()
    return server
