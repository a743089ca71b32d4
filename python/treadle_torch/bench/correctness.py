"""(a) Whether sampler and trainer compute the same policy, whoever shares a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from treadle_torch.device import Placement
from treadle_torch.engine import Engine
from treadle_torch.losses import PolicyGradient

from .direct import generate
from .models import Sizes, causal, num_tokens, random_prompts, random_rows

POLICY = PolicyGradient("token", "clipped", 0.2, 0.28, None, 0.0, "k3", 0.0, None)


def correctness(sizes: Sizes, placement: Placement, most_k3: float, *, uses_graphs: bool) -> Iterator[dict[str, Any]]:
    engine = Engine(causal(sizes.small, sizes.context, placement), sizes.sequences, placement, uses_graphs=uses_graphs)
    prompts = random_prompts(sizes, sizes.sequences, 3)
    length = sizes.new_tokens // 2
    together = generate(engine, prompts, length, 5)
    yield {"what": "sampler against trainer", **_mismatch(engine, prompts, together), "target_k3_mean": most_k3}

    few = prompts[:: max(1, len(prompts) // 6)]
    alone = [generate(engine, [one], length, 5)[0] for one in few]
    others = [together[key] for key, _ in few]
    differences = [_first_difference(one[0], other[0]) for one, other in zip(alone, others, strict=True)]
    yield {
        "what": "the same tokens alone and among others",
        "sequences": len(few),
        "differing_sequences": sum(each is not None for each in differences),
        "tokens_before_a_difference": [each for each in differences if each is not None],
        "largest_logprob_difference": max(_largest(a, b, each) for a, b, each in zip(alone, others, differences, strict=True)),
    }

    batch = random_rows(sizes, 7)
    packed = _logprobs_and_gradient(engine, [batch])
    single = _logprobs_and_gradient(engine, [{name: each[row : row + 1] for name, each in batch.items()} for row in range(4)])
    first = {name: each[:4] for name, each in batch.items()}
    some = _logprobs_and_gradient(engine, [first])
    yield {
        "what": "packed against single rows",
        "tokens": num_tokens(batch),
        "largest_logprob_difference": (packed[0][:4] - single[0]).abs().max().item(),
        "mean_logprob_difference": (packed[0][:4] - single[0]).abs().mean().item(),
        "gradient_difference": ((some[1] - single[1]).norm() / single[1].norm()).item(),
    }
    engine.close()


def _mismatch(engine: Engine, prompts: list[tuple[int, list[int]]], completions: list[tuple[list[int], list[float]]]) -> dict[str, Any]:
    """k3 is r - 1 - log r of the trainer's over the sampler's probability of a token, and the effective sample size that of r."""
    rows = [tokens + chosen for (_, tokens), (chosen, _) in zip(prompts, completions, strict=True)]
    columns = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (columns - len(row)) for row in rows], dtype=torch.int32)
    scored = engine.submit(lambda: engine.score({"tokens": tokens}, "logprobs")).result()
    pairs = [
        (scored[row, len(prompt) : len(prompt) + len(chosen)], torch.tensor(logprobs))
        for row, ((_, prompt), (chosen, logprobs)) in enumerate(zip(prompts, completions, strict=True))
    ]
    log_ratio = torch.cat([trainer - sampler for trainer, sampler in pairs]).double()
    ratio = log_ratio.exp()
    k3 = ratio - 1 - log_ratio
    return {
        "tokens": len(k3),
        "k3_mean": k3.mean().item(),
        "k3_max": k3.max().item(),
        "largest_logprob_difference": log_ratio.abs().max().item(),
        "effective_sample_share": (ratio.sum() ** 2 / (ratio.square().sum() * len(ratio))).item(),
        "mean_logprob": torch.cat([sampler for _, sampler in pairs]).mean().item(),
    }


def _logprobs_and_gradient(engine: Engine, batches: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    scored = [engine.submit(lambda b=batch: engine.score({"tokens": b["tokens"]}, "logprobs")).result() for batch in batches]
    engine.submit(engine.parameters.zero).result()
    for batch in batches:
        engine.submit(lambda b=batch: engine.forward_backward(b, POLICY)).result()
    gradient = torch.cat([each.flatten() for each in engine.parameters.gradients if each is not None])
    engine.submit(engine.parameters.zero).result()
    return torch.cat(scored), gradient


def _first_difference(a: list[int], b: list[int]) -> int | None:
    return next((index for index, (one, other) in enumerate(zip(a, b, strict=True)) if one != other), None)


def _largest(a: tuple[list[int], list[float]], b: tuple[list[int], list[float]], until: int | None) -> float:
    return max((abs(one - other) for one, other in zip(a[1][:until], b[1][:until], strict=True)), default=0.0)
