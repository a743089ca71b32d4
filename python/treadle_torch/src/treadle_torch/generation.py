"""Which sequence sits in which slot of the decoder, and what it reads next. All of it belongs to the device's thread.

TG1 a chosen token depends on the weights, the prompt and (seed, key, number of the token), never on the slot: what else is
    computed beside it moves a log-probability by rounding alone.
TG2 after `restart` every unfinished sequence is computed again from its prompt, so a completion has one version. So is what has begun
    elsewhere where it comes under another version than its client counts on, as when weights were on their way.
TG3 a sequence that stopped and may be extended is held, with all it has read, until it is answered for; an answer for one
    that has begun again since is ignored.
TG4 what a sequence has when it begins was chosen elsewhere, or appended: it is read with the prompt in one pass, never chosen again,
    and the next token is the one that would have followed there (TG1).
TG5 what a sequence has had more of is told in pieces, no more often than asked for; what it ends or is held with, its reply tells.
TG6 whoever waits for a call is told once of each step of what that step has made of it: a thread that serves each sequence by itself
    would take the interpreter from this one as often.
TG7 a message of what was made has at most 65,536 tokens, or one completion.
"""

from __future__ import annotations

import functools
import queue
import time
from collections import deque
from dataclasses import dataclass, field

from . import draws
from .clients import OWNER
from .decoding import Reading, SlotModel
from .device import Placement
from .errors import Refusal
from .model import CausalModel
from .room import Need

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
    held: bool
    attempt: int


@dataclass(frozen=True)
class Piece:
    """TG5: from that token on."""

    index: int
    attempt: int
    start: int
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Told:
    """TG6: of one version."""

    replies: list[Reply]
    pieces: list[Piece]
    policy_version: int


@dataclass(frozen=True)
class Prompt:
    key: int
    tokens: list[int]
    begun: list[int] = field(default_factory=list)
    begun_logprobs: list[float] = field(default_factory=list)
    num_appended: int = 0


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
    num_told: int = 0

    @functools.cached_property
    def stream(self) -> int:
        return draws.begun(self.generation.sampling.seed, self.key)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.chosen)

    def unread(self) -> list[int]:
        if self.position >= len(self.prompt):
            return self.chosen[self.position - len(self.prompt) :]
        return self.prompt[self.position :] + self.chosen

    def restart(self) -> None:
        self.position, self.num_appended, self.num_told, self.held = 0, 0, 0, False
        self.chosen, self.logprobs = [], []
        self.attempt += 1


class Generation:
    """One call of a client; its replies end with None, or with what it failed with."""

    def __init__(
        self,
        sampling: Sampling,
        prompts: list[Prompt],
        client: str = OWNER,
        progress_seconds: float | None = None,
        expected_version: int | None = None,
    ) -> None:
        self.sampling = sampling
        self.client = client
        self.replies: queue.SimpleQueue[Told | Exception | None] = queue.SimpleQueue()
        self._made: list[Reply] = []
        self.waiting = deque(self._begin(index, prompt) for index, prompt in enumerate(prompts))
        self.unfinished = len(prompts)
        self.progress_seconds = progress_seconds
        self.tells_at = 0.0
        self.expected_version = expected_version

    def _begin(self, index: int, prompt: Prompt) -> Sequence:
        """TG4."""
        sequence = Sequence(self, index, prompt.key, prompt.tokens)
        sequence.chosen, sequence.logprobs = list(prompt.begun), list(prompt.begun_logprobs)
        sequence.num_appended, sequence.num_told = prompt.num_appended, len(prompt.begun)
        return sequence

    def reply(self, sequence: Sequence, reason: str, *, held: bool = False) -> None:
        """Told with the rest of its step."""
        self._made.append(
            Reply(sequence.index, list(sequence.chosen), list(sequence.logprobs), reason, held, sequence.attempt)
        )
        if not held:
            self.unfinished -= 1

    def tell(self, pieces: list[Piece], policy_version: int) -> None:
        """TG6."""
        self.replies.put(Told(self._made, pieces, policy_version))
        self._made = []
        if self.unfinished == 0:
            self.replies.put(None)


class Decoder:
    """The next token of every sequence at a time."""

    def __init__(self, model: CausalModel, placement: Placement, num_slots: int, *, uses_graphs: bool = False) -> None:
        self._context_length = model.context_length
        self._model = SlotModel(model, placement, num_slots, uses_graphs=uses_graphs)
        self._occupants: list[Sequence | None] = [None] * num_slots
        self._generations: list[Generation] = []
        # MC2: clients whose sequences wait.
        self._paused: set[str] = set()
        # TG6: in the order in which they were replied to since they were told.
        self._replied: dict[Generation, None] = {}
        # Whether the device has what the next step reads: then nothing but that step has moved a sequence.
        self._is_told = False

    @property
    def cache_bytes(self) -> int:
        return self._model.cache_bytes

    @property
    def cache_need(self) -> Need:
        return self._model.cache_need

    def begin(self, generation: Generation, policy_version: int) -> None:
        if generation.expected_version not in (None, policy_version):
            for sequence in generation.waiting:
                if sequence.chosen:
                    sequence.restart()
        if generation.unfinished == 0:
            generation.replies.put(None)
        else:
            self._generations.append(generation)

    def can_step(self) -> bool:
        """Whether something can be computed before anybody answers for a held sequence."""
        if self._active():
            return True
        return any(one is None for one in self._occupants) and self._next_waiting() is not None

    def pause(self, client: str) -> None:
        self._paused.add(client)
        self._is_told = False

    def resume(self, client: str) -> None:
        self._paused.discard(client)
        self._is_told = False

    def is_paused(self, client: str) -> bool:
        return client in self._paused

    def step(self, policy_version: int) -> None:
        self._seat()
        active = self._active()
        # Prompts first: whoever has one token to read goes on together.
        prompts = [(slot, one) for slot, one in active if one.length - one.position > 1]
        if prompts:
            active = self._within_chunk(prompts)
            self._is_told = False
            chosen = self._model.read([self._reading(slot, one) for slot, one in active])
            rows = enumerate(active)
        elif active:
            active = self._gathered(active)
            readings = None if self._is_told else [self._reading(slot, one) for slot, one in active]
            longest = max(one.length for _, one in active)
            chosen = self._model.step(readings, active[-1][0] + 1, longest)
            self._is_told = True
            rows = ((slot, (slot, one)) for slot, one in active)
        else:
            return
        for row, (slot, sequence) in rows:
            sequence.position = sequence.length
            sequence.chosen.append(chosen.tokens[row])
            sequence.logprobs.append(chosen.logprobs[row])
            self._after_token(slot, sequence, chosen.tokens[row])
        self._tell(policy_version, self._pieces())

    def _tell(self, policy_version: int, pieces: dict[Generation, list[Piece]] | None = None) -> None:
        """TG6."""
        pieces = pieces or {}
        for generation in {**self._replied, **dict.fromkeys(pieces)}:
            generation.tell(pieces.get(generation, []), policy_version)
        self._replied.clear()

    def _pieces(self) -> dict[Generation, list[Piece]]:
        """TG5."""
        now = time.monotonic()
        due = {one for one in self._generations if one.progress_seconds is not None and one.tells_at <= now}
        for generation in due:
            generation.tells_at = now + (generation.progress_seconds or 0)
        pieces: dict[Generation, list[Piece]] = {}
        for one in self._occupants if due else ():
            if one is None or one.generation not in due or one.held or one.num_told == len(one.chosen):
                continue
            start, one.num_told = one.num_told, len(one.chosen)
            piece = Piece(one.index, one.attempt, start, one.chosen[start:], one.logprobs[start:])
            pieces.setdefault(one.generation, []).append(piece)
        return pieces

    def extend(self, generation: Generation, index: int, attempt: int, tokens: list[int] | None, policy_version: int) -> None:
        """TG3."""
        for slot, one in enumerate(self._occupants):
            if one is None or one.generation is not generation or one.index != index:
                continue
            if not one.held or one.attempt != attempt:
                return
            if tokens is None:
                self._end(slot, one, "stop")
            elif one.length + len(tokens) >= self._context_length:
                self._end(slot, one, "length")
            else:
                one.held = False
                self._is_told = False
                one.num_appended += len(tokens)
                one.chosen.extend(tokens)
                one.logprobs.extend([0.0] * len(tokens))
            self._tell(policy_version)
            return

    def restart(self) -> None:
        """TG2."""
        self._is_told = False
        for one in self._occupants:
            if one is not None:
                one.restart()
        for generation in self._generations:
            for one in generation.waiting:
                one.restart()

    def abort(self, generation: Generation, policy_version: int, index: int | None = None) -> None:
        """One sequence alone where there is an index; the others keep their slots (TG1)."""
        for sequence in self._remove(generation, index):
            self._reply(sequence, "abort")
        self._tell(policy_version)

    def cancel(self, generation: Generation) -> None:
        self._remove(generation)
        generation.replies.put(None)

    def fail(self, error: Refusal, client: str | None = None) -> None:
        """What a client generates, or all, ends with that."""
        for generation in [each for each in self._generations if client in (None, each.client)]:
            self._remove(generation)
            generation.replies.put(error)

    def free(self) -> None:
        """The cache; nothing is being generated."""
        self._is_told = False
        self._model.free()

    def release(self, error: Refusal) -> None:
        self.fail(error)
        self.free()

    def _remove(self, generation: Generation, index: int | None = None) -> list[Sequence]:
        if generation not in self._generations:
            return []
        self._is_told = False
        removed = []
        for slot, one in enumerate(self._occupants):
            if one is not None and one.generation is generation and index in (None, one.index):
                removed.append(one)
                self._occupants[slot] = None
        removed.extend(one for one in generation.waiting if index in (None, one.index))
        generation.waiting = deque(one for one in generation.waiting if index not in (None, one.index))
        if len(removed) == generation.unfinished:
            self._generations.remove(generation)
        return removed

    def _seat(self) -> None:
        for slot, one in enumerate(self._occupants):
            if one is not None:
                continue
            waiting = self._next_waiting()
            if waiting is None:
                return
            self._occupants[slot] = waiting.popleft()
            self._is_told = False

    def _next_waiting(self) -> deque[Sequence] | None:
        return next((each.waiting for each in self._generations if each.waiting and each.client not in self._paused), None)

    def _active(self) -> list[tuple[int, Sequence]]:
        return [
            (slot, one)
            for slot, one in enumerate(self._occupants)
            if one is not None and not one.held and one.generation.client not in self._paused
        ]

    @staticmethod
    def _within_chunk(prompts: list[tuple[int, Sequence]]) -> list[tuple[int, Sequence]]:
        """Of about one length, so that little is padding; at least one."""
        ordered = sorted(prompts, key=lambda each: each[1].length - each[1].position)
        longest = lambda count: ordered[count - 1][1].length - ordered[count - 1][1].position  # noqa: E731
        count = 1
        while count < len(ordered) and longest(count + 1) * (count + 1) <= CHUNK_TOKENS:
            count += 1
        return ordered[:count]

    def _gathered(self, active: list[tuple[int, Sequence]]) -> list[tuple[int, Sequence]]:
        """A step is over the first slots: once they are half empty, the last sequences move to the free ones."""
        seated = [slot for slot, one in enumerate(self._occupants) if one is not None]
        if 2 * len(seated) > seated[-1] + 1 or self._model.shape_of(len(seated)) == self._model.shape_of(seated[-1] + 1):
            return active
        self._is_told = False
        free = (slot for slot, one in enumerate(self._occupants) if one is None)
        for source in reversed(seated):
            target = next(free)
            if target >= source:
                break
            one = self._occupants[source]
            assert one is not None
            self._model.move(source, target, one.position)
            self._occupants[target], self._occupants[source] = one, None
        return self._active()

    @staticmethod
    def _reading(slot: int, one: Sequence) -> Reading:
        """TG1."""
        sampling = one.generation.sampling
        return Reading(slot, one.position, one.unread(), one.stream, len(one.chosen), sampling.temperature)

    def _after_token(self, slot: int, sequence: Sequence, token: int) -> None:
        sampling = sequence.generation.sampling
        is_full = (
            len(sequence.chosen) - sequence.num_appended >= sampling.max_tokens
            or sequence.length >= self._context_length
        )
        if token in sampling.stop_tokens:
            if sampling.extensible and not is_full:
                sequence.held = True
                self._is_told = False
                self._reply(sequence, "stop", held=True)
            else:
                self._end(slot, sequence, "stop")
        elif is_full:
            self._end(slot, sequence, "length")

    def _end(self, slot: int, sequence: Sequence, reason: str) -> None:
        self._occupants[slot] = None
        self._is_told = False
        self._reply(sequence, reason)
        if sequence.generation.unfinished == 0:
            self._generations.remove(sequence.generation)

    def _reply(self, sequence: Sequence, reason: str, *, held: bool = False) -> None:
        sequence.generation.reply(sequence, reason, held=held)
        self._replied[sequence.generation] = None
