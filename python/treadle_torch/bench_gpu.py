"""Measures the engine on one device: one line of JSON a measurement, and a summary.

    python python/treadle_torch/bench_gpu.py            one CUDA device, bfloat16, at most about four minutes
    python python/treadle_torch/bench_gpu.py --quick    tiny models on the CPU: whether the measurements themselves work
    python python/treadle_torch/bench_gpu.py --only a,c

Models have random weights. A measurement that fails says so, and the others go on. It does not measure: models that are
trained, prompts of real lengths, several devices, or how fast Node reads what is sent to it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

here = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here / "src")]
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402

from bench.clock import clear  # noqa: E402
from bench.correctness import correctness  # noqa: E402
from bench.large import large, trained  # noqa: E402
from bench.memory import pause_and_resume, release_and_restore  # noqa: E402
from bench.models import FULL, QUICK, build  # noqa: E402
from bench.served import Served  # noqa: E402
from bench.speed import generation_speed, training_speed  # noqa: E402
from bench.weights import weights_of_the_same_module, weights_to_another  # noqa: E402
from treadle_torch.attention import varlen_works  # noqa: E402
from treadle_torch.device import Placement, place  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--quick", action="store_true", help="tiny models on the CPU")
    options.add_argument("--only", default="a,b,c,d,e,f,g", help="which of a,b,c,d,e,f,g")
    options.add_argument("--seconds", type=float, default=230, help="after which no measurement begins")
    options.add_argument("--no-graphs", action="store_true", help="of the engine's process")
    chosen = options.parse_args()
    sizes = QUICK if chosen.quick else FULL
    if chosen.quick:
        torch.set_num_threads(1)
    placement = place("cpu" if chosen.quick else "cuda", "bfloat16")
    single = Placement(placement.device, torch.float32)
    run = Run(chosen.only.split(","), chosen.seconds)
    run.say({"what": "environment", **_environment(placement)})
    folder = tempfile.mkdtemp(prefix="treadle-bench-model-")
    served: Served | None = None
    try:
        if run.wants("b", "c", "d", "f", "g"):
            build(sizes.small, sizes.context, placement).save_pretrained(folder)
        run.measure("g", "bfloat16", lambda: weights_to_another(_model(folder, sizes), placement))
        run.measure("g", "bfloat16, shared", lambda: weights_of_the_same_module(_model(folder, sizes), placement))
        if run.wants("b", "c", "d", "f"):
            served = _serve(folder, sizes, placement, cuda_graphs=not chosen.no_graphs)
        run.measure("a", "bfloat16", lambda: correctness(sizes, placement, 1e-3, uses_graphs=False))
        run.measure("a", "bfloat16, graphs", lambda: correctness(sizes, placement, 1e-3, uses_graphs=True), where=placement.is_cuda)
        run.measure("a", "float32", lambda: correctness(sizes, single, 1e-6, uses_graphs=False))
        if served is not None:
            one = served
            run.measure("b", "bfloat16", lambda: generation_speed(sizes, placement, one.wait()))
            run.measure("f", "bfloat16", lambda: pause_and_resume(sizes, one))
            run.measure("c", "bfloat16", lambda: training_speed(sizes, placement, one.wait()))
            run.measure("d", "bfloat16", lambda: release_and_restore(one.wait()))
            one.close()
            served = None
        run.measure("e", "bfloat16", lambda: large(sizes, placement))
        run.measure("e", "bfloat16", lambda: trained(sizes, placement))
    finally:
        if served is not None:
            served.close()
        shutil.rmtree(folder, ignore_errors=True)
    run.summarise()


class Run:
    def __init__(self, only: list[str], limit_seconds: float) -> None:
        self._only = only
        self._began = time.monotonic()
        self._limit = limit_seconds
        self._said: list[dict[str, Any]] = []
        self._failed: list[str] = []

    def wants(self, *items: str) -> bool:
        return any(item in self._only for item in items)

    def measure(self, item: str, name: str, act: Callable[[], Iterator[dict[str, Any]]], *, where: bool = True) -> None:
        if item not in self._only or not where:
            return
        if time.monotonic() - self._began > self._limit:
            self._failed.append(f"({item}) {name}: no time was left")
            self.say({"item": item, "name": name, "failed": "no time was left"})
            return
        try:
            for each in act():
                self.say({"item": item, "name": name, **each})
        except Exception as error:  # noqa: BLE001 the others go on
            self._failed.append(f"({item}) {name}: {error}")
            self.say({"item": item, "name": name, "failed": repr(error), "where": traceback.format_exc().splitlines()[-12:]})
        finally:
            clear()

    def say(self, line: dict[str, Any]) -> None:
        self._said.append(line)
        print(json.dumps({**line, "at_seconds": round(time.monotonic() - self._began, 1)}), flush=True)

    def summarise(self) -> None:
        keys = ("k3_mean", "k3_max", "differing_sequences", "tokens_per_second", "gib_per_second", "share_of_a_step", "gradient_difference", "seconds_to_take", "bytes_added")
        short = [
            {key: line[key] for key in line if key in ("item", "name", "what", *keys) or key.endswith(("share_of_a_copy", "times_a_file", "_over_direct", "_over_plain", "_over_hugging_face"))}
            for line in self._said
            if "what" in line
        ]
        print(json.dumps({"summary": short, "failed": self._failed, "seconds": round(time.monotonic() - self._began, 1)}), flush=True)
        # Threads of engines are daemons, which a failed device may hold.
        sys.stdout.flush()
        os._exit(1 if self._failed else 0)


def _model(folder: str, sizes: Any) -> dict[str, Any]:
    return {
        "path": folder,
        "vocab_size": sizes.small["vocab_size"],
        "context_length": sizes.context,
        "layers": 1,
        "width": 1,
        "heads": 1,
        "value_head": False,
        "seed": 0,
    }


def _serve(folder: str, sizes: Any, placement: Placement, *, cuda_graphs: bool) -> Served:
    return Served(_model(folder, sizes), slots=sizes.sequences, device=placement.device.type, dtype="bfloat16", cuda_graphs=cuda_graphs)


def _environment(placement: Placement) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if placement.is_cuda else "cpu",
        "has_varlen_attention": placement.is_cuda and varlen_works(placement.device, placement.dtype),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
    }


if __name__ == "__main__":
    main()
