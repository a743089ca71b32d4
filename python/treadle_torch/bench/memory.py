"""(d) What a release gives back, and how fast; (f) how long weights take to another's hands on the same device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from treadle_torch._generated import engine_pb2 as pb

from .models import Sizes, random_prompts
from .served import Served

GIB = 2**30


def release_and_restore(served: Served) -> Iterator[dict[str, Any]]:
    """Of a trained engine, twice: the first release gets the pinned memory."""
    for time_ in ("first", "second"):
        for method, request in (("Release", pb.ReleaseRequest()), ("Restore", pb.RestoreRequest())):
            moved = served.call(method, request).moved
            yield {"what": f"{time_} {method.lower()} of weights, optimiser and cache", **_speed_of(moved)}


def _speed_of(moved: pb.Moved) -> dict[str, Any]:
    return {
        "gib": moved.num_bytes / GIB,
        "seconds": moved.seconds,
        "gib_per_second": moved.num_bytes / GIB / max(moved.seconds, 1e-9),
        "device_gib_of_tensors_left": moved.after.allocated_bytes / GIB,
        "device_gib_reserved_left": moved.after.reserved_bytes / GIB,
        "device_gib_free": moved.after.free_bytes / GIB,
        "note": moved.note,
    }


def pause_and_resume(sizes: Sizes, served: Served) -> Iterator[dict[str, Any]]:
    """Where sampler and trainer are one engine, nothing is copied: its weights are new between two tokens."""
    running = threading.Thread(target=served.generate, args=(random_prompts(sizes, sizes.sequences, 41), sizes.new_tokens, 2))
    running.start()
    time.sleep(0.2)
    pauses = []
    for _ in range(5):
        began = time.perf_counter()
        served.call("Pause", pb.PauseRequest())
        served.call("Resume", pb.ResumeRequest())
        pauses.append(time.perf_counter() - began)
    running.join()
    yield {"what": "weights in the same engine: pause and resume while it generates", "seconds": sorted(pauses)[2], "bytes": 0}
