"""(g) Weights to another process on the same device: mapped there, and in a file; beside a copy of as many bytes on the device."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch

from treadle_torch._generated import engine_pb2 as pb
from treadle_torch.crc import ROW_BYTES, checksums, num_rows
from treadle_torch.device import Placement

from .clock import seconds
from .served import Served

GIB = 2**30
ROUNDS = 5


def weights_to_another(model: dict[str, Any], placement: Placement) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        files = lambda name: {"store": {"root": root, "name": f"treadle-bench-{name}"}, "roots": [{"folder": root, "prefix": "treadle-bench-"}], "on_device": True}  # noqa: E731
        trainer, receiver = (Served(model, slots=1, device=placement.device.type, dtype="bfloat16", weight_files=files(name)) for name in ("a", "b"))
        try:
            trainer.wait(), receiver.wait()
            yield from _measured(trainer, receiver, placement)
        finally:
            trainer.close()
            receiver.close()


def _measured(trainer: Served, receiver: Served, placement: Placement) -> Iterator[dict[str, Any]]:
    taken: dict[str, list[float]] = {}

    def timed(name: str, act: Any) -> Any:
        began = time.perf_counter()
        result = act()
        taken.setdefault(name, []).append(time.perf_counter() - began)
        return result

    for _ in range(ROUNDS):
        published = timed("publish", lambda: trainer.call("Publish", pb.PublishRequest()))
        assert published.HasField("device") or not placement.is_cuda, "weights are not on the device"
        timed("load", lambda p=published: receiver.load(p))
    # Apart: a publication removes the file of the one before, which takes time of its own.
    for _ in range(ROUNDS if placement.is_cuda else 0):
        published = trainer.call("Publish", pb.PublishRequest())
        written = timed("write a file", lambda p=published: trainer.call("WriteFile", pb.WriteFileRequest(folder=p.folder)))
        timed("load the file", lambda w=written: receiver.load(w))
    sizes = [_size(each) for each in published.tensors]
    gib = sum(sizes) / GIB
    middle = {name: sorted(each)[ROUNDS // 2] for name, each in taken.items()}
    source = torch.empty(sum(sizes), dtype=torch.uint8, device=placement.device)
    target = torch.empty_like(source)
    copy = seconds(lambda: target.copy_(source), 5)
    rows = torch.zeros(sum(map(num_rows, sizes)), ROW_BYTES, dtype=torch.uint8, device=placement.device)
    checksums(rows, sizes)
    checked = seconds(lambda: checksums(rows, sizes), 3)
    both = middle["publish"] + middle["load"]
    yield {
        "what": "weights to another process on the same device",
        "gib": gib,
        **{f"seconds_to_{name.replace(' ', '_')}": value for name, value in middle.items()},
        "seconds_of_checksums": checked,
        "gib_per_second": gib / both,
        "gib_per_second_of_a_copy": gib / copy,
        "share_of_a_copy": copy / both,
        "times_a_file": (middle["write a file"] + middle["load the file"]) / both if placement.is_cuda else 1.0,
    }


def _size(tensor: pb.Tensor) -> int:
    return torch.Size(tensor.shape).numel() * (2 if tensor.dtype == "BF16" else 4)
