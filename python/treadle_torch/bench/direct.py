"""The engine driven in this process, without gRPC."""

from __future__ import annotations

from treadle_torch.engine import Engine
from treadle_torch.generation import Generation, Prompt, Sampling


def generate(engine: Engine, prompts: list[tuple[int, list[int]]], max_tokens: int, seed: int, stop: frozenset[int] = frozenset()) -> list[tuple[list[int], list[float]]]:
    generation = Generation(Sampling(max_tokens, 1.0, stop, seed, False), [Prompt(*one) for one in prompts])
    engine.submit(lambda: engine.generate(generation)).result()
    answers: dict[int, tuple[list[int], list[float]]] = {}
    while (told := generation.replies.get()) is not None:
        if isinstance(told, Exception):
            raise told
        for reply in told.replies:
            answers[reply.index] = (reply.tokens, reply.logprobs)
    return [answers[index] for index in range(len(prompts))]
