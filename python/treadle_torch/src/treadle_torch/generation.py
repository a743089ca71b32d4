"""Which sequence sits in which slot of the decoder, and what it reads next. All of it belongs to the device's thread.

TG1 a chosen token depends on the weights, the prompt and (seed, key, number of the token), never on the slot: what else is
    computed beside it moves a log-probability by rounding alone.
TG2 after `restart` every unfinished sequence is computed again from its prompt, so a completion has one version.
TG3 a sequence that stopped and may be extended is held, with all it has read, until it is answered for; an answer for one
    that has begun again since is ignored.
"""

from __future__ import annotations

import queue
from collections import deque
from dataclasses import dataclass, field

import torch

from .draws import uniform
from .errors import Refusal
from .model import CausalModel

# Prompt tokens read at once: more would keep the others from their next token for longer.
CHUNK_TOKENS = 4096


@dataclass(frozen=True)
class Sampling:
    max_tokens: int
    temperature: float
    stop_tokens: frozenset[int]
    seed: int
    extensible: bool


@dataclass(frozen=True)
class Reply:
    index: int
    tokens: list[int]
    logprobs: list[float]
    reason: str
    policy_version: int
    held: bool
    attempt: int


@dataclass
class Sequence:
    generation: Generation
    index: int
    key: int
    prompt: list[int]
    position: int = 0
    chosen: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_appended: int = 0
    held: bool = False
    attempt: int = 0

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.chosen)

    def unread(self) -> list[int]:
        return (self.prompt + self.chosen)[self.position :]

    def restart(self) -> None:
        self.position, self.num_appended, self.held = 0, 0, False
        self.chosen, self.logprobs = [], []
        self.attempt += 1


class Generation:
    """One call; its replies end with None, or with what it failed with."""

    def __init__(self, sampling: Sampling, prompts: list[tuple[int, list[int]]]) -> None:
        self.sampling = sampling
        self.replies: queue.SimpleQueue[Reply | Exception | None] = queue.SimpleQueue()
        self.waiting = deque(Sequence(self, index, key, tokens) for index, (key, tokens) in enumerate(prompts))
        self.unfinished = len(prompts)

    def reply(self, sequence: Sequence, reason: str, policy_version: int, *, held: bool = False) -> None:
        tokens, logprobs = list(sequence.chosen), list(sequence.logprobs)
        self.replies.put(Reply(sequence.index, tokens, logprobs, reason, policy_version, held, sequence.attempt))
        if held:
            return
        self.unfinished -= 1
        if self.unfinished == 0:
            self.replies.put(None)


class SlotCache:
    """Keys and values of every slot, `[slots, heads, positions, size]` a layer; what a model's attention updates and reads."""

    is_compileable = False

    def __init__(self, slots: int, positions: int) -> None:
        self._shape = (slots, positions)
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._slots = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, 0, dtype=torch.long)
        self._length = 0

    @property
    def num_bytes(self) -> int:
        return sum(each.numel() * each.element_size() for layer in self._layers for each in layer)

    def aim(self, slots: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        """The next pass writes there, and reads so many positions of those slots."""
        self._slots, self._positions, self._length = slots, positions, length

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        slots, positions = self._shape
        while len(self._layers) <= layer:
            shapes = [(slots, each.shape[1], positions, each.shape[3]) for each in (keys, values)]
            self._layers.append((torch.zeros(shapes[0]), torch.zeros(shapes[1])))
        result = []
        for stored, new in zip(self._layers[layer], (keys, values), strict=True):
            stored[self._slots[:, None], :, self._positions] = new.transpose(1, 2)
            result.append(stored[self._slots, :, : self._length])
        return result[0], result[1]

    def get_seq_length(self, *_: object) -> int:
        return 0


class Decoder:
    """The next token of every sequence at a time."""

    def __init__(self, model: CausalModel, num_slots: int) -> None:
        self._model = model
        self._occupants: list[Sequence | None] = [None] * num_slots
        self._generations: list[Generation] = []
        self._cache: SlotCache | None = None

    @property
    def cache_bytes(self) -> int:
        return self._cache.num_bytes if self._cache else 0

    def begin(self, generation: Generation) -> None:
        if generation.unfinished == 0:
            generation.replies.put(None)
        else:
            self._generations.append(generation)

    def can_step(self) -> bool:
        """Whether something can be computed before anybody answers for a held sequence."""
        if any(one is not None and not one.held for one in self._occupants):
            return True
        return any(one is None for one in self._occupants) and any(each.waiting for each in self._generations)

    def step(self, policy_version: int) -> None:
        self._seat()
        active = [(slot, one) for slot, one in enumerate(self._occupants) if one is not None and not one.held]
        # Prompts first: whoever has one token to read goes on together.
        prompts = [(slot, one) for slot, one in active if one.length - one.position > 1]
        batch = self._within_chunk(prompts) if prompts else active
        if not batch:
            return
        logits = self._read(batch)
        for (slot, sequence), (token, logprob) in zip(batch, self._choose(batch, logits), strict=True):
            sequence.position = sequence.length
            sequence.chosen.append(token)
            sequence.logprobs.append(logprob)
            self._after_token(slot, sequence, token, policy_version)

    def extend(self, generation: Generation, index: int, attempt: int, tokens: list[int] | None, policy_version: int) -> None:
        """TG3."""
        for slot, one in enumerate(self._occupants):
            if one is None or one.generation is not generation or one.index != index:
                continue
            if not one.held or one.attempt != attempt:
                return
            if tokens is None:
                self._end(slot, one, "stop", policy_version)
            elif one.length + len(tokens) >= self._model.context_length:
                self._end(slot, one, "length", policy_version)
            else:
                one.held = False
                one.num_appended += len(tokens)
                one.chosen.extend(tokens)
                one.logprobs.extend([0.0] * len(tokens))
            return

    def restart(self) -> None:
        """TG2."""
        for one in self._occupants:
            if one is not None:
                one.restart()

    def abort(self, generation: Generation, policy_version: int) -> None:
        for sequence in self._remove(generation):
            generation.reply(sequence, "abort", policy_version)

    def cancel(self, generation: Generation) -> None:
        self._remove(generation)
        generation.replies.put(None)

    def release(self, error: Refusal) -> None:
        for generation in list(self._generations):
            self._remove(generation)
            generation.replies.put(error)
        self._cache = None

    def _remove(self, generation: Generation) -> list[Sequence]:
        if generation not in self._generations:
            return []
        self._generations.remove(generation)
        removed = []
        for slot, one in enumerate(self._occupants):
            if one is not None and one.generation is generation:
                removed.append(one)
                self._occupants[slot] = None
        removed.extend(generation.waiting)
        generation.waiting.clear()
        return removed

    def _seat(self) -> None:
        for slot, one in enumerate(self._occupants):
            if one is not None:
                continue
            waiting = next((each.waiting for each in self._generations if each.waiting), None)
            if waiting is None:
                return
            self._occupants[slot] = waiting.popleft()

    @staticmethod
    def _within_chunk(prompts: list[tuple[int, Sequence]]) -> list[tuple[int, Sequence]]:
        """Of about one length, so that little is padding; at least one."""
        ordered = sorted(prompts, key=lambda each: each[1].length - each[1].position)
        longest = lambda count: ordered[count - 1][1].length - ordered[count - 1][1].position  # noqa: E731
        count = 1
        while count < len(ordered) and longest(count + 1) * (count + 1) <= CHUNK_TOKENS:
            count += 1
        return ordered[:count]

    def _read(self, batch: list[tuple[int, Sequence]]) -> torch.Tensor:
        """Reads what is unread of each; the logits of what follows the last, `[sequences, vocabulary]`."""
        context = self._model.context_length
        if self._cache is None:
            # One position more than there are tokens: padding is written there, and nobody looks at it.
            self._cache = SlotCache(len(self._occupants), context + 1)
        unread = [one.unread() for _, one in batch]
        columns = max(map(len, unread))
        tokens = torch.tensor([own + [0] * (columns - len(own)) for own in unread])
        positions = torch.tensor(
            [[one.position + i if i < len(own) else context for i in range(columns)] for (_, one), own in zip(batch, unread, strict=True)]
        )
        length = max(one.length for _, one in batch)
        self._cache.aim(torch.tensor([slot for slot, _ in batch]), positions, length)
        visible = torch.arange(length)[None, None, None, :] <= positions[:, None, :, None]
        with torch.no_grad():
            # Rotary tables end with the context; nothing reads what stands at a padded place.
            logits = self._model.read(tokens, positions.clamp(max=context - 1), visible, self._cache)
        return logits[torch.arange(len(batch)), torch.tensor([len(own) - 1 for own in unread])]

    @staticmethod
    def _choose(batch: list[tuple[int, Sequence]], logits: torch.Tensor) -> list[tuple[int, float]]:
        """Tokens, and their log-probabilities in the distribution that each is drawn from; greedy ones have the model's own."""
        samplings = [one.generation.sampling for _, one in batch]
        temperatures = torch.tensor([each.temperature or 1.0 for each in samplings], dtype=torch.float64)
        logprobs = torch.log_softmax(logits.double() / temperatures[:, None], -1)
        best = logprobs.argmax(-1)
        draws = torch.tensor(
            [uniform(each.seed, one.key, len(one.chosen)) for each, (_, one) in zip(samplings, batch, strict=True)],
            dtype=torch.float64,
        )
        sums = logprobs.exp().cumsum(-1)
        drawn = torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True)[:, 0]
        is_greedy = torch.tensor([each.temperature == 0 for each in samplings]) | (drawn >= logits.shape[1])
        tokens = torch.where(is_greedy, best, drawn)
        return list(zip(tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist(), strict=True))

    def _after_token(self, slot: int, sequence: Sequence, token: int, policy_version: int) -> None:
        sampling = sequence.generation.sampling
        is_full = (
            len(sequence.chosen) - sequence.num_appended >= sampling.max_tokens
            or sequence.length >= self._model.context_length
        )
        if token in sampling.stop_tokens:
            if sampling.extensible and not is_full:
                sequence.held = True
                sequence.generation.reply(sequence, "stop", policy_version, held=True)
            else:
                self._end(slot, sequence, "stop", policy_version)
        elif is_full:
            self._end(slot, sequence, "length", policy_version)

    def _end(self, slot: int, sequence: Sequence, reason: str, policy_version: int) -> None:
        self._occupants[slot] = None
        generation = sequence.generation
        generation.reply(sequence, reason, policy_version)
        if generation.unfinished == 0:
            self._generations.remove(generation)
