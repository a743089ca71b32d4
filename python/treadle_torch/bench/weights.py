"""(g) Weights to another process on the same device: mapped there, and in a file; beside a copy of as many bytes on the device. And to a
client that has attached to the trainer's process, which computes with the same module."""

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


def weights_of_the_same_module(model: dict[str, Any], placement: Placement) -> Iterator[dict[str, Any]]:
    """What a pull takes, what the client's weights add to the device, and whether it draws what an engine of its own draws."""
    place: dict[str, Any] = {"slots": 8, "device": placement.device.type, "dtype": "bfloat16"}
    trainer, alone = Served(model, **place, shared=True), Served(model, **place)
    prompts = [(key, [1 + key, 2, 3]) for key in range(8)]
    client, both = "sampler", [pb.TAG_WEIGHTS, pb.TAG_CACHE]
    try:
        trainer.wait(), alone.wait()
        allocated = lambda: trainer.call("Memory", pb.MemoryRequest()).device.allocated_bytes  # noqa: E731
        before = allocated()
        lease = trainer.attach(client)
        trainer.call("Restore", pb.RestoreRequest(tags=both), client)
        added = allocated() - before
        taken: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, act in {
                "take": lambda: trainer.call("Memory", pb.MemoryRequest(), client),
                "pause_and_resume": lambda: (trainer.call("Pause", pb.PauseRequest(), client), trainer.call("Resume", pb.ResumeRequest(), client)),
            }.items():
                began = time.perf_counter()
                act()
                taken.setdefault(name, []).append(time.perf_counter() - began)
        drawn, expected = trainer.generate(prompts, 8, 7, client), alone.generate(prompts, 8, 7)
        differing = sum(not torch.equal(one[0], other[0]) for one, other in zip(drawn, expected, strict=True))
        # What one of the two needs stays; what none needs goes.
        held = trainer.call("Memory", pb.MemoryRequest(), client).resident_bytes
        trainer.call("Release", pb.ReleaseRequest())
        again = trainer.generate(prompts, 8, 7, client)
        differing += sum(not torch.equal(one[0], other[0]) for one, other in zip(again, expected, strict=True))
        with_client = allocated()
        lease.cancel()
        deadline = time.monotonic() + 30
        while placement.is_cuda and allocated() > with_client - held // 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        left = allocated()
        assert differing == 0, f"'{differing}' sequences differ from those of an engine of its own"
        assert added < 2**20, f"an attached client took '{added}' bytes for weights"
        yield {
            "what": "weights of the same module",
            **{f"seconds_to_{name}": sorted(each)[ROUNDS // 2] for name, each in taken.items()},
            "bytes_added": added,
            "bytes_of_the_client": held,
            "bytes_left_without_it": left,
            "differing_sequences": differing,
        }
    finally:
        trainer.close()
        alone.close()


def _size(tensor: pb.Tensor) -> int:
    return torch.Size(tensor.shape).numel() * (2 if tensor.dtype == "BF16" else 4)
