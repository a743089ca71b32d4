"""A client of the engine's process, as a worker is one: a process of its own, a Unix socket, gRPC."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import grpc
import torch

from treadle_torch._generated import engine_pb2 as pb

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "src"
STREAMED = {"Attach": (False, True), "Generate": (True, True), "Score": (True, True), "ForwardBackward": (True, False), "Write": (True, False), "Read": (False, True), "ReadSaved": (False, True)}
PIECE = 2**20


class Served:
    """Starts at once; `wait` returns when it answers."""

    def __init__(self, model: dict[str, Any], *, slots: int, device: str, dtype: str, cuda_graphs: bool = False, checkpoints: bool = False, processes: int = 1, weight_files: dict[str, Any] | None = None, shared: bool = False) -> None:
        folder = tempfile.mkdtemp(prefix="treadle-bench-")
        settings = {
            "address": f"unix:{folder}/engine.sock",
            "folder": folder,
            "token": "bench",
            "rank": 0,
            "processes": processes,
            "timeout_s": 600,
            "silence_s": 60,
            "threads": 1,
            "slots": slots,
            "device": device,
            "dtype": dtype,
            "checkpoint_activations": checkpoints,
            "compile": False,
            "cuda_graphs": cuda_graphs,
            "lora": None,
            "loaded": True,
            "shared": shared,
            "collective": None,
            "use": "any",
            "weight_files": weight_files or {"store": None, "roots": [], "on_device": False},
            "model": model,
        }
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "treadle_torch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(settings) + "\n")
        self._process.stdin.flush()
        self._channel = grpc.insecure_channel(settings["address"])
        self._methods = {
            method.name: self._stub(method.name, getattr(pb, method.output_type.name))
            for method in pb.DESCRIPTOR.services_by_name["Engine"].methods
        }
        self._sequence = 0
        self._epoch = ""

    def wait(self) -> Served:
        if self._epoch:
            return self
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if json.loads(said or "{}") != {"ready": True}:
            raise RuntimeError(f"the engine's process said '{said.strip()}'")
        self._epoch = self.call("Describe", pb.DescribeRequest()).epoch
        return self

    def call(self, method: str, request: Any, client: str = "") -> Any:
        """`client`: one that has attached."""
        named = (("treadle-client", client),) if client else ()
        return self._methods[method](request, metadata=(("authorization", "Bearer bench"), *named))

    def attach(self, client: str) -> Any:
        """It is attached until the call that comes back is cancelled."""
        lease = self.call("Attach", pb.AttachRequest(client=client), client)
        next(lease)
        return lease

    def generate(self, prompts: list[tuple[int, list[int]]], max_tokens: int, seed: int, client: str = "") -> list[tuple[torch.Tensor, torch.Tensor]]:
        def requests() -> Iterator[pb.GenerateRequest]:
            yield pb.GenerateRequest(start=pb.Start(num_prompts=len(prompts), max_tokens=max_tokens, temperature=1.0, seed=seed))
            every = torch.tensor([token for _, tokens in prompts for token in tokens], dtype=torch.int32)
            keys, lengths = [key for key, _ in prompts], [len(tokens) for _, tokens in prompts]
            yield pb.GenerateRequest(prompts=pb.Prompts(keys=keys, lengths=lengths, tokens=_bytes(every)))

        answers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for reply in self.call("Generate", requests(), client):
            rows = reply.completions.rows
            given = ((rows.tokens, torch.int32), (rows.logprobs, torch.float32))
            columns = (torch.frombuffer(bytearray(data), dtype=dtype).split(list(rows.lengths)) for data, dtype in given)
            answers.update(zip(rows.indices, zip(*columns, strict=True), strict=True))
        return [answers[index] for index in range(len(prompts))]

    def forward_backward(self, batch: dict[str, torch.Tensor]) -> pb.LossMetrics:
        rows, columns = batch["tokens"].shape
        loss = pb.Loss(policy_gradient=pb.PolicyGradient(ratio="token", surrogate="clipped", clip_low=0.2, clip_high=0.28))
        header = pb.BatchHeader(turn=self._turn(), rows=rows, columns=columns, arrays=list(batch), loss=loss)

        def parts() -> Iterator[pb.BatchPart]:
            yield pb.BatchPart(header=header)
            data = b"".join(_bytes(each) for each in batch.values())
            for first in range(0, len(data), PIECE):
                yield pb.BatchPart(bytes=data[first : first + PIECE])

        return self.call("ForwardBackward", parts())

    def optim_step(self, scale: float) -> pb.OptimStepReply:
        step = {"learning_rate": 1e-6, "scale": scale, "max_grad_norm": 1.0, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.01}
        return self.call("OptimStep", pb.OptimStepRequest(turn=self._turn(), **step))

    def load(self, published: pb.PublishReply) -> pb.WriteReply:
        named = {name: getattr(published, name) for name in ("policy_version", "store", "nonce", "folder", "tensors")}
        device = published.device if published.HasField("device") else None
        return self.call("Load", pb.LoadRequest(turn=self._turn(), device=device, **named))

    def close(self) -> None:
        self._channel.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _turn(self) -> pb.Turn:
        self._sequence += 1
        return pb.Turn(epoch=self._epoch, sequence=self._sequence)

    def _stub(self, method: str, reply: Any) -> Any:
        takes, gives = STREAMED.get(method, (False, False))
        kind = f"{'stream' if takes else 'unary'}_{'stream' if gives else 'unary'}"
        serialise = lambda message: message.SerializeToString()  # noqa: E731
        return getattr(self._channel, kind)(f"/treadle.engines.v1.Engine/{method}", serialise, reply.FromString)


def _bytes(array: torch.Tensor) -> bytes:
    return array.contiguous().numpy().tobytes()
