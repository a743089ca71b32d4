"""The engine's terms as messages (packages/engines/protos/engines/v1/engine.proto), and messages as its terms.

TS3 what a call brings is bounded before it is kept.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from ._generated import engine_pb2 as pb
from .device import DeviceMemory, Placement
from .engine import TAGS, Health, Moved, TagMemory
from .errors import Refusal, invalid
from .generation import Generation, Piece, Prompt, Reply, Sampling, Told
from .losses import PolicyGradient, ValueTerm
from .parameters import Parameters
from .weight_blocks import HANDLE_BYTES
from .weight_files import DTYPES, Device, Obstacle, Tensor, Ticket
from .weight_link import SECRET_BYTES, Place

Row = TypeVar("Row", Reply, Piece)

CHUNK_BYTES = 2**20
MAX_BATCH_BYTES = 2**30
REPLY_TOKENS = 2**16

REASONS = {"stop": pb.Completions.STOP, "length": pb.Completions.LENGTH, "abort": pb.Completions.ABORT}
NUMBERS = ("temperatures", "weights", "advantages", "oldLogprobs", "refLogprobs", "returns", "oldValues")


def read_tags(tags: Iterable[int]) -> list[str]:
    """None is all."""
    return [TAGS[tag] for tag in tags] or list(TAGS)


def device_message(memory: DeviceMemory) -> pb.DeviceMemory:
    return pb.DeviceMemory(
        free_bytes=memory.free,
        total_bytes=memory.total,
        allocated_bytes=memory.allocated,
        reserved_bytes=memory.reserved,
    )


def moved_message(moved: Moved) -> pb.Moved:
    return pb.Moved(
        before=device_message(moved.before),
        after=device_message(moved.after),
        num_bytes=moved.num_bytes,
        seconds=moved.seconds,
        note=moved.note,
    )


def tag_message(memory: TagMemory) -> pb.TagMemory:
    return pb.TagMemory(
        tag=TAGS.index(memory.tag),
        bytes=memory.num_bytes,
        release_seconds=memory.release_seconds,
        restore_seconds=memory.restore_seconds,
    )


def health_message(health: Health, placement: Placement) -> pb.HealthReply:
    return pb.HealthReply(
        device=str(placement.device),
        dtype=str(placement.dtype).removeprefix("torch."),
        busy_seconds=health.busy_seconds,
        num_waiting=health.num_waiting,
        paused=health.is_paused,
        released=[TAGS.index(tag) for tag in health.released],
    )


def read_generation(requests: Iterator[pb.GenerateRequest], context_length: int, vocab_size: int, client: str) -> Generation:
    first = next(requests, None)
    if first is None or first.WhichOneof("kind") != "start":
        raise invalid("a generation begins with what is to be sampled")
    start = first.start
    prompts: list[Prompt] = []
    while len(prompts) < start.num_prompts:
        request = next(requests, None)
        if request is None or request.WhichOneof("kind") != "prompts":
            raise invalid(f"'{len(prompts)}' prompts came where '{start.num_prompts}' were announced")
        prompts.extend(read_prompts(request.prompts, vocab_size))
    if len(prompts) > start.num_prompts:
        raise invalid(f"'{len(prompts)}' prompts came where '{start.num_prompts}' were announced")
    for one in prompts:
        if not one.tokens or len(one.tokens) + len(one.begun) >= context_length:
            raise invalid("a prompt is empty, or fills the context with what has begun")
        if one.num_appended > len(one.begun):
            raise invalid("of what has begun more is appended than there is")
        if one.begun and len(one.begun) - one.num_appended >= start.max_tokens:
            raise invalid(f"what has begun has '{len(one.begun)}' tokens and is to go on, of at most '{start.max_tokens}'")
    sampling = Sampling(
        max_tokens=start.max_tokens,
        temperature=start.temperature,
        stop_tokens=frozenset(start.stop_tokens),
        seed=start.seed,
        extensible=start.extensible,
    )
    progress_seconds = start.progress_ms / 1000 if start.HasField("progress_ms") else None
    expected_version = start.policy_version if start.HasField("policy_version") else None
    return Generation(sampling, prompts, client, progress_seconds, expected_version)


def read_prompts(columns: pb.Prompts, vocab_size: int) -> list[Prompt]:
    """All columns must be of the same prompts."""
    count = len(columns.keys)
    none = [0] * count
    given = [read_ints(columns.tokens), read_ints(columns.begun_tokens), _numbers("f", columns.begun_logprobs)]
    if any(each and (min(each) < 0 or max(each) >= vocab_size) for each in given[:2]):
        raise invalid("a prompt, or what has begun, has a token outside the vocabulary")
    if not all(map(math.isfinite, given[2])):
        raise invalid("what has begun has a log-probability that is not finite")
    begun_lengths, appended = columns.begun_lengths or none, columns.num_appended or none
    lengths = (columns.lengths, begun_lengths, begun_lengths)
    if any(len(each) != count for each in (*lengths, appended)) or any(sum(some) != len(each) for some, each in zip(lengths, given, strict=True)):
        raise invalid(f"columns of '{count}' prompts have other numbers of entries, or of tokens, than they say")
    parts = [_parts(each, some) for each, some in zip(given, lengths, strict=True)]
    return [Prompt(*each) for each in zip(columns.keys, *parts, appended, strict=True)]


def _parts(numbers: list[Any], lengths: Sequence[int]) -> list[list[Any]]:
    ends = itertools.accumulate(lengths)
    return [numbers[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def reply_messages(told: Told) -> Iterator[pb.GenerateReply]:
    for replies in _bounded(told.replies):
        completions = pb.Completions(
            rows=_rows(replies),
            finish_reasons=[REASONS[each.reason] for each in replies],
            held=[each.held for each in replies],
            policy_version=told.policy_version,
        )
        yield pb.GenerateReply(completions=completions)
    for pieces in _bounded(told.pieces):
        yield pb.GenerateReply(progress=pb.Progress(rows=_rows(pieces), starts=[each.start for each in pieces]))


def _bounded(told: list[Row]) -> Iterator[list[Row]]:
    """TG7."""
    some: list[Row] = []
    size = 0
    for each in told:
        if some and size + len(each.tokens) > REPLY_TOKENS:
            yield some
            some, size = [], 0
        some.append(each)
        size += len(each.tokens)
    if some:
        yield some


def _rows(told: list[Row]) -> pb.Rows:
    tokens, logprobs = array("i"), array("f")
    for each in told:
        tokens.fromlist(each.tokens)
        logprobs.fromlist(each.logprobs)
    return pb.Rows(
        indices=[each.index for each in told],
        attempts=[each.attempt for each in told],
        lengths=[len(each.tokens) for each in told],
        tokens=tokens.tobytes(),
        logprobs=logprobs.tobytes(),
    )


def read_batch(parts: Iterator[pb.BatchPart]) -> tuple[pb.BatchHeader, dict[str, torch.Tensor]]:
    header = read_header(parts)
    rows, columns = header.rows, header.columns
    names = list(header.arrays)
    if names[:1] != ["tokens"] or len(set(names)) != len(names) or not set(names[1:]) <= set(NUMBERS):
        raise invalid(f"arrays '{names}' are not those of a batch")
    sizes = [rows if name == "temperatures" else rows * columns for name in names]
    if 4 * sum(sizes) > MAX_BATCH_BYTES:
        raise invalid(f"a batch has '{4 * sum(sizes)}' bytes where at most '{MAX_BATCH_BYTES}' are taken; give fewer rows")
    data = bytearray(read_announced(parts, 4 * sum(sizes)))
    batch: dict[str, torch.Tensor] = {}
    offset = 0
    for name, size in zip(names, sizes, strict=True):
        dtype = torch.int32 if name == "tokens" else torch.float32
        array = torch.frombuffer(data, dtype=dtype, count=size, offset=offset) if size else torch.empty(0, dtype=dtype)
        batch[name] = array if name == "temperatures" else array.view(rows, columns)
        offset += 4 * size
    return header, batch


def read_loss(loss: pb.Loss) -> PolicyGradient | None:
    if loss.WhichOneof("type") == "cross_entropy":
        return None
    spec = loss.policy_gradient
    return PolicyGradient(
        ratio=spec.ratio,
        surrogate=spec.surrogate,
        clip_low=spec.clip_low,
        clip_high=spec.clip_high,
        dual_clip=spec.dual_clip if spec.HasField("dual_clip") else None,
        kl_coefficient=spec.kl_coefficient,
        kl_estimator=spec.kl_estimator,
        entropy_coefficient=spec.entropy_coefficient,
        value=ValueTerm(spec.value.coefficient, spec.value.clip) if spec.HasField("value") else None,
    )


def publish_message(published: Ticket | Obstacle) -> pb.PublishReply:
    if isinstance(published, Obstacle):
        return pb.PublishReply(obstacle=published.reason)
    adapter = published.adapter
    return pb.PublishReply(
        policy_version=published.policy_version,
        store=published.store,
        nonce=published.nonce,
        folder=published.folder,
        tensors=_tensor_messages(published.tensors),
        adapter=adapter
        and pb.Adapter(rank=adapter.rank, tensors=_tensor_messages(adapter.tensors), config_crc32=adapter.config_crc32),
        device=published.device and pb.DevicePlace(uuid=published.device.uuid, handle=published.device.handle),
    )


def _tensor_messages(tensors: Iterable[Tensor]) -> list[pb.Tensor]:
    return [pb.Tensor(name=each.name, shape=each.shape, dtype=each.dtype, crc32=each.crc32) for each in tensors]


def read_ticket(request: pb.LoadRequest, parameters: Parameters) -> Ticket:
    """TS3: of this model, which bounds what is read."""
    tensors = tuple(Tensor(each.name, tuple(each.shape), each.dtype, each.crc32) for each in request.tensors)
    expected = [(name, tuple(shape)) for name, shape in parameters.layout]
    if [(each.name, each.shape) for each in tensors] != expected or any(each.dtype not in DTYPES for each in tensors):
        raise Refusal("engine.weights-mismatch", f"weights of version '{request.policy_version}' refused: their tensors are not the model's")
    if not request.folder or request.folder in (".", "..") or "/" in request.folder:
        raise Refusal("engine.weights-mismatch", f"weights of version '{request.policy_version}' refused: '{request.folder}' names no folder")
    device = Device(request.device.uuid, request.device.handle) if request.HasField("device") else None
    if device is not None and len(device.handle) != HANDLE_BYTES:
        raise invalid(f"a device's handle has '{len(device.handle)}' bytes where '{HANDLE_BYTES}' are expected")
    return Ticket(request.policy_version, request.store, request.nonce, request.folder, tensors, None, device)


def read_place(link: pb.Link) -> Place:
    """TS3."""
    if len(link.secret) != SECRET_BYTES:
        raise invalid(f"a link's secret has '{len(link.secret)}' bytes where '{SECRET_BYTES}' are expected")
    return Place(link.name, link.host, link.port, link.secret)


def read_header(parts: Iterator[Any]) -> Any:
    first = next(parts, None)
    if first is None or first.WhichOneof("kind") != "header":
        raise invalid("a header was expected first")
    return first.header


def read_body(parts: Iterable[Any], most_bytes: int) -> bytearray:
    """TS3."""
    data = bytearray()
    for part in parts:
        data += part.bytes
        if len(data) > most_bytes:
            raise invalid(f"'{len(data)}' bytes came where at most '{most_bytes}' are allowed")
    return data


def read_announced(parts: Iterable[Any], num_bytes: int) -> bytearray:
    data = read_body(parts, num_bytes)
    if len(data) != num_bytes:
        raise invalid(f"'{len(data)}' bytes came where '{num_bytes}' were announced")
    return data


def chunks(data: bytes | memoryview) -> Iterator[pb.Chunk]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield pb.Chunk(bytes=bytes(data[start : start + CHUNK_BYTES]))


def read_ints(data: bytes) -> list[int]:
    return _numbers("i", data)


def _numbers(kind: str, data: bytes) -> list[Any]:
    if len(data) % 4:
        raise invalid(f"'{len(data)}' bytes are no whole numbers of 4")
    numbers = array(kind)
    numbers.frombytes(data)
    return numbers.tolist()
