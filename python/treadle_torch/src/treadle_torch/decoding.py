"""The device's side of generation: what each slot reads next, its draws, and one token of all of them.

The host learns of a pass's tokens by one transfer, and tells the device of its slots only when they have changed.

GD2 a pass over the first slots has one of a few shapes, whoever sits there: slots without a sequence read and write the
    position behind the context, which no sequence sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import draws
from .attention import Cached, Packed
from .cache import FirstSlots, Prompts, Rows, SlotCache
from .device import Placement
from .model import CausalModel
from .room import Need

# Of a vocabulary: sums of blocks come first where it has several.
BLOCK = 1024


@dataclass(frozen=True)
class Reading:
    """What a sequence reads in a pass, and how the token behind it is chosen."""

    slot: int
    position: int
    tokens: list[int]
    stream: int
    number: int
    temperature: float


@dataclass(frozen=True)
class Chosen:
    tokens: list[int]
    logprobs: list[float]


class Choices:
    """How tokens are chosen, one number a sequence; on the device."""

    def __init__(self, streams: torch.Tensor, numbers: torch.Tensor, temperatures: torch.Tensor) -> None:
        self.streams, self.numbers, self.temperatures = streams, numbers, temperatures

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """`[2, sequences]` in float64: tokens, and their log-probabilities in the distribution that each is drawn from;
        greedy ones have the model's own."""
        # A device reads a large vocabulary in half the time; what is summed over it is in float64 either way.
        wide = torch.float32 if logits.is_cuda else torch.float64
        is_greedy = self.temperatures == 0
        scales = torch.where(is_greedy, 1.0, self.temperatures).to(wide)
        logprobs = torch.log_softmax(logits.to(wide) / scales[:, None], -1)
        drawn = _inverse(logprobs.exp(), draws.uniform(self.streams, self.numbers))
        tokens = torch.where(is_greedy | (drawn >= logits.shape[1]), logits.argmax(-1), drawn)
        return torch.stack([tokens.double(), logprobs.gather(1, tokens[:, None])[:, 0].double()])


class SlotModel:
    """A model with a cache for so many sequences."""

    def __init__(self, model: CausalModel, placement: Placement, num_slots: int, *, uses_graphs: bool = False) -> None:
        self._model = model
        self._placement = placement
        self._num_slots = num_slots
        self._uses_graphs = uses_graphs and placement.is_cuda
        self._cache: SlotCache | None = None
        self._slots: SlotState | None = None
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        # Kernels for long rows of keys want them in whole blocks, and few lengths make few shapes.
        self._block = 64 if placement.is_cuda else 1
        self._num_positions = -(-(model.context_length + 1) // self._block) * self._block

    @property
    def cache_bytes(self) -> int:
        return self._cache.num_bytes if self._cache else 0

    @property
    def cache_need(self) -> Need:
        """Of a whole cache, for models that say how large their keys are."""
        config = self._model.inner.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        each = 2 * config.num_hidden_layers * heads * size * self._placement.dtype.itemsize
        return Need(f"cache of {self._num_slots} slots", each, self._num_slots * self._num_positions, "positions")

    def free(self) -> None:
        self._graphs.clear()
        self._cache = self._slots = None

    def shape_of(self, count: int) -> int:
        """How many slots a pass over at least so many has."""
        return min(self._num_slots, 1 << (count - 1).bit_length()) if self._placement.is_cuda else count

    def move(self, source: int, target: int, length: int) -> None:
        assert self._cache is not None
        self._cache.move(source, target, length)

    @torch.no_grad()
    def read(self, readings: list[Reading]) -> Chosen:
        """Whatever is unread of each, however much; then a token of each."""
        model, device = self._model, self._placement.device
        cache = self._ready()
        counts = [len(each.tokens) for each in readings]
        if all(each.position == 0 for each in readings):
            view = Packed(counts, device)
            tokens = torch.tensor([token for each in readings for token in each.tokens], device=device)
            slots = torch.tensor([each.slot for each in readings]).repeat_interleave(torch.tensor(counts)).to(device)
            cache.aim(Prompts(slots, view.positions))
            hidden = model.body(tokens[None], view.positions[None], view, cache)[0]
            last = hidden[(torch.tensor(counts).cumsum(0) - 1).to(device)]
        else:
            columns, length = max(counts), max(each.position + len(each.tokens) for each in readings)
            pad = model.context_length
            padded = [each.tokens + [0] * (columns - len(each.tokens)) for each in readings]
            places = [[each.position + i if i < len(each.tokens) else pad for i in range(columns)] for each in readings]
            tokens, positions = torch.tensor(padded, device=device), torch.tensor(places, device=device)
            length = self._seen(length)
            cache.aim(Rows(torch.tensor([each.slot for each in readings], device=device), positions, length))
            hidden = model.body(tokens, positions.clamp(max=pad - 1), Cached(self._bias(positions, length)), cache)
            last = hidden[torch.arange(len(readings), device=device), torch.tensor(counts, device=device) - 1]
        choices = Choices(
            torch.tensor([each.stream for each in readings], device=device),
            torch.tensor([each.number for each in readings], device=device),
            torch.tensor([each.temperature for each in readings], dtype=torch.float64, device=device),
        )
        return _told(choices.choose(model.logits(last)))

    @torch.no_grad()
    def step(self, readings: list[Reading] | None, count: int, longest: int) -> Chosen:
        """One token of each of the first `count` slots, which have read at most `longest`, this token included.

        `readings` says what the slots are now; None, that they are as the last step left them.
        """
        self._ready()
        assert self._slots is not None
        if readings is not None:
            self._slots.write(readings)
        count, length = self.shape_of(count), self._seen(longest)
        if not self._uses_graphs:
            return _told(self._pass(count, length))
        if (count, length) not in self._graphs:
            self._graphs[count, length] = self._captured(count, length)
        graph, chosen = self._graphs[count, length]
        graph.replay()
        return _told(chosen)

    def _pass(self, count: int, length: int) -> torch.Tensor:
        """GD2. Its shapes and addresses depend on its arguments alone, and it waits for nothing: a graph can hold it."""
        assert self._cache is not None and self._slots is not None
        state = self._slots
        positions = state.positions[:count]
        self._cache.aim(FirstSlots(state.ids[:count], positions, length))
        view = Cached(self._bias(positions[:, None], length))
        places = positions.clamp(max=self._model.context_length - 1)[:, None]
        hidden = self._model.body(state.tokens[:count, None], places, view, self._cache)[:, 0]
        choices = Choices(state.streams[:count], state.numbers[:count], state.temperatures[:count])
        chosen = choices.choose(self._model.logits(hidden))
        state.advance(count, chosen[0])
        return chosen

    def _captured(self, count: int, length: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """Its rehearsals are on empty slots, so that no sequence's state moves."""
        assert self._slots is not None
        kept = self._slots.words.clone()
        self._slots.clear()
        side = torch.cuda.Stream(self._placement.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._pass(count, length)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values()))[0].pool() if self._graphs else None
        # Other threads of this process only serve calls; what they do on the device is none of the graph's.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            chosen = self._pass(count, length)
        self._slots.words.copy_(kept)
        return graph, chosen

    def _bias(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        visible = torch.arange(length, device=positions.device) <= positions[:, None, :, None]
        hidden = torch.full((), -torch.inf, dtype=self._placement.dtype, device=positions.device)
        return torch.where(visible, 0.0, hidden)

    def _seen(self, length: int) -> int:
        """Whole blocks; from 512 on, one of two lengths between powers of two."""
        if self._block == 1:
            return length
        step = max(self._block, (1 << (length - 1).bit_length()) // 4)
        return min(self._num_positions, -(-length // step) * step)

    def _ready(self) -> SlotCache:
        if self._cache is None or self._slots is None:
            self._cache = SlotCache(self._num_slots, self._num_positions)
            self._slots = SlotState(self._num_slots, self._model.context_length, self._placement.device)
        return self._cache


class SlotState:
    """What the next token of each slot depends on, in one tensor: it travels at once."""

    def __init__(self, num_slots: int, context_length: int, device: torch.device) -> None:
        self._empty = context_length
        self._host = torch.zeros(6, num_slots, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.words = self._host.to(device, copy=True)
        self.ids = torch.arange(num_slots, device=device)
        self.tokens, self.positions, self.streams, self.numbers, self._steps = self.words[:5]
        self.temperatures = self.words[5].view(torch.float64)

    def clear(self) -> None:
        self.words.zero_()
        self.positions.fill_(self._empty)

    def write(self, readings: list[Reading]) -> None:
        """Slots without a reading stand behind the context, and stay there."""
        host = torch.zeros_like(self._host)
        host[1] = self._empty
        temperatures = host[5].view(torch.float64)
        if readings:
            slots = torch.tensor([each.slot for each in readings])
            columns = [[each.tokens[0], each.position, each.stream, each.number, 1] for each in readings]
            host[:5, slots] = torch.tensor(columns).T
            temperatures[slots] = torch.tensor([each.temperature for each in readings], dtype=torch.float64)
        # The last transfer has ended: whatever was computed since has been read.
        self._host.copy_(host)
        self.words.copy_(self._host, non_blocking=True)

    def advance(self, count: int, chosen: torch.Tensor) -> None:
        steps = self._steps[:count]
        self.tokens[:count] = torch.where(steps == 1, chosen.long(), 0)
        self.positions[:count] += steps
        self.numbers[:count] += steps


def _inverse(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Where cumulative sums exceed that share of the whole, `[rows]`; of a large vocabulary first which block of it."""
    rows, vocabulary = probabilities.shape
    size = _block_of(vocabulary)
    blocks = -(-vocabulary // size)
    padding = blocks * size - vocabulary
    split = (torch.nn.functional.pad(probabilities, (0, padding)) if padding else probabilities).view(rows, blocks, size)
    sums = split.sum(-1, dtype=torch.float64).cumsum(-1)
    place = (uniform * sums[:, -1])[:, None]
    block = torch.searchsorted(sums, place, right=True).clamp(max=blocks - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = split[torch.arange(rows, device=split.device), block[:, 0]].cumsum(-1, dtype=torch.float64)
    return block[:, 0] * size + torch.searchsorted(inside, place - before, right=True)[:, 0]


def _block_of(vocabulary: int) -> int:
    """A divisor, where there is one that is worth it: then nothing is padded."""
    divisor = min(BLOCK, vocabulary & -vocabulary)
    return vocabulary if vocabulary <= BLOCK else divisor if divisor >= 64 else BLOCK


def _told(chosen: torch.Tensor) -> Chosen:
    tokens, logprobs = chosen.tolist()
    return Chosen([int(each) for each in tokens], logprobs)
