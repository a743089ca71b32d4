"""Small models and what they are given; on a CUDA device where there is one."""

import torch
from treadle_torch.device import place
from treadle_torch.engine import Engine
from treadle_torch.generation import Generation, Prompt, Sampling
from treadle_torch.losses import PolicyGradient
from treadle_torch.model import CausalModel, ModelOptions, PassOptions, make_model

torch.set_num_threads(1)
POLICY = PolicyGradient("token", "clipped", 0.2, 0.28, None, 0.0, "k3", 0.01, None)
VOCABULARY, CONTEXT = 23, 24


def tiny(dtype: str = "float32", passes: PassOptions | None = None) -> CausalModel:
    return make_model(ModelOptions(None, VOCABULARY, CONTEXT, 2, 32, 4, False, 3), place("auto", dtype).dtype, passes)


def engine_of(model: CausalModel, dtype: str = "float32", slots: int = 4, *, uses_graphs: bool = False) -> Engine:
    return Engine(model, slots, place("auto", dtype), uses_graphs=uses_graphs)


def batch_of(rows: int, columns: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    lengths = torch.randint(2, columns + 1, (rows, 1), generator=draw)
    return {
        "tokens": torch.randint(VOCABULARY, (rows, columns), generator=draw, dtype=torch.int32),
        "temperatures": torch.rand(rows, generator=draw) + 0.5,
        "weights": (torch.arange(columns) < lengths).float() * torch.rand(rows, columns, generator=draw),
        "advantages": torch.randn(rows, columns, generator=draw),
        "oldLogprobs": torch.full((rows, columns), -3.0),
    }


def generate(engine: Engine, prompts: list[tuple[int, list[int]]], max_tokens: int, temperature: float = 1.0) -> list[tuple[list[int], list[float]]]:
    generation = Generation(Sampling(max_tokens, temperature, frozenset([5]), 77, False), [Prompt(*one) for one in prompts])
    engine.submit(lambda: engine.generate(generation)).result()
    answers: dict[int, tuple[list[int], list[float]]] = {}
    while (told := generation.replies.get()) is not None:
        if isinstance(told, Exception):
            raise told
        answers.update({reply.index: (reply.tokens, reply.logprobs) for reply in told.replies})
    return [answers[index] for index in range(len(prompts))]
