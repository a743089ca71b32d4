"""(e) Models that fill a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from treadle_torch.device import Placement, measure
from treadle_torch.engine import Engine

from .clock import seconds
from .correctness import POLICY
from .direct import generate
from .models import Sizes, causal, count, num_tokens, random_prompts, random_rows
from .speed import STEP

# Of a trained parameter: two copies, a gradient and two moments.
TRAINED_BYTES = 2 + 4 + 4 + 4 + 4


def large(sizes: Sizes, placement: Placement) -> Iterator[dict[str, Any]]:
    model = causal(sizes.large, sizes.context, placement, checkpoints=True)
    parameters = count(model)
    engine = Engine(model, sizes.large_sequences, placement, uses_graphs=True)
    prompts = random_prompts(sizes, sizes.large_sequences, 51)
    act = lambda: generate(engine, prompts, sizes.new_tokens, 3)  # noqa: E731
    generate(engine, prompts, sizes.new_tokens, 3)
    total = sizes.large_sequences * sizes.new_tokens
    yield {
        "what": "large model, generation",
        "parameters": parameters,
        "sequences": sizes.large_sequences,
        "new_tokens": sizes.new_tokens,
        "tokens_per_second": total / seconds(act),
        "device_gib_of_tensors": measure(placement).allocated / 2**30,
    }
    engine.submit(lambda: engine.release(["cache"])).result()
    batch = {name: each[: max(1, sizes.rows // 8)] for name, each in random_rows(sizes, 61).items()}
    needs = f"{parameters / 1e9:.2f} G parameters x {TRAINED_BYTES} bytes (copy 2, master 4, gradient 4, moments 8) = {parameters * TRAINED_BYTES / 2**30:.0f} GiB"
    yield {"what": "large model, one forward and backward pass with checkpoints", **_pass(engine, batch, placement), "to_train_it_needs": needs}
    engine.close()


def trained(sizes: Sizes, placement: Placement) -> Iterator[dict[str, Any]]:
    model = causal(sizes.trained, sizes.context, placement, checkpoints=True)
    engine = Engine(model, 1, placement)
    batch = random_rows(sizes, 71)
    first = _pass(engine, batch, placement)
    engine.submit(lambda: engine.optim_step(STEP)).result()
    again = seconds(lambda: engine.submit(lambda: (engine.forward_backward(batch, POLICY), engine.optim_step(STEP))).result())
    tokens = num_tokens(batch)
    yield {
        "what": "the largest that is trained, a step",
        "parameters": count(model),
        "tokens": tokens,
        "seconds": again,
        "tokens_per_second": tokens / again,
        "peak_device_gib": _peak(placement),
        "first_pass": first,
    }
    engine.close()


def _pass(engine: Engine, batch: dict[str, torch.Tensor], placement: Placement) -> dict[str, Any]:
    act = lambda: engine.submit(lambda: engine.forward_backward(batch, POLICY)).result()  # noqa: E731
    taken = seconds(act)
    return {"tokens": num_tokens(batch), "seconds": taken, "tokens_per_second": num_tokens(batch) / taken, "peak_device_gib": _peak(placement)}


def _peak(placement: Placement) -> float:
    return torch.cuda.max_memory_allocated(placement.device) / 2**30 if placement.is_cuda else 0.0
