"""The same work as an engine's clients ask for, in this process alone: without gRPC, and training without the engine, too.

    python alone.py

The first line of input is the work, as JSON. Each further line names one way to do some of it, and is answered by a line of
JSON: the seconds that this took, and what came of it.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

here = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(here), str(here / "src")]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

from bench.direct import generate  # noqa: E402
from bench.speed import Plain  # noqa: E402
from treadle_torch.device import HOST  # noqa: E402
from treadle_torch.engine import PASS_TOKENS, Engine  # noqa: E402
from treadle_torch.model import ModelOptions, make_model  # noqa: E402
from treadle_torch.packing import pack  # noqa: E402


def main() -> None:
    work = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    options = ModelOptions(**work["model"])
    ways = _generation(options, **work["generation"]) if "generation" in work else _training(options, work["lengths"])
    print(json.dumps({"ready": list(ways)}), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        made = ways[line.strip()]()
        print(json.dumps({"seconds": time.perf_counter() - began, "made": made}), flush=True)


def _generation(options: ModelOptions, *, slots: int, prompts: list[Any], max_tokens: int, stop: list[int], seed: int) -> dict[str, Callable[[], Any]]:
    engine = Engine(make_model(options, torch.float32), slots)
    given = [(key, tokens) for key, tokens in prompts]

    def act() -> list[list[int]]:
        return [tokens for tokens, _ in generate(engine, given, max_tokens, seed, frozenset(stop))]

    return {"generate": act}


def _training(options: ModelOptions, lengths: list[int]) -> dict[str, Callable[[], Any]]:
    """Loops of plain PyTorch; the rows' tokens do not matter, their lengths do."""
    shape = (len(lengths), max(lengths))
    counts = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    batch = {
        "tokens": torch.randint(options.vocab_size, shape, dtype=torch.int32),
        "weights": counts.float(),
        "advantages": torch.randn(shape),
    }
    passes = pack(batch["tokens"], counts, PASS_TOKENS, HOST.device)
    packed, padded = (Plain(make_model(options, torch.float32).inner, has_own_attention=each) for each in (False, True))
    return {"packed": lambda: packed.step(batch, passes), "padded": lambda: padded.step_padded(batch)}


if __name__ == "__main__":
    main()
