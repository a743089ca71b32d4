"""One model on one thread.

The thread owns parameters, gradients, optimiser and cache; nobody else touches them. Others hand it jobs and wait.

PE1 jobs run one after another, each whole; between two of them one token of every sequence is generated.
PE2 parameters change only between two tokens, and then what is being generated starts over from its prompts.
PE3 on a released engine what computes is refused; what reads the host's copy still answers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from .checkpoint import decode_checkpoint, encode_checkpoint
from .errors import Refusal, invalid
from .generation import Decoder, Generation
from .losses import METRICS, PolicyGradient, weighted_loss
from .model import CausalModel
from .optimiser import AdamW, Step

T = TypeVar("T")

# Of one pass: what it keeps of its tokens, and of their logits, must fit beside the model.
PASS_TOKENS = 8192
PASS_LOGITS = 2**24


class Engine:
    def __init__(self, model: CausalModel, num_slots: int) -> None:
        self.model = model
        self.named = model.named()
        self.optimiser = AdamW([parameter for _, parameter in self.named])
        self.policy_version = 0
        self._decoder = Decoder(model, num_slots)
        self._paused = False
        self._released = False
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        threading.Thread(target=self._run, name="device", daemon=True).start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """PE1."""
        result: Future[T] = Future()
        with self._wake:
            self._jobs.append((job, result))
            self._wake.notify()
        return result

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and (self._paused or not self._decoder.can_step()):
                    self._wake.wait()
                job = self._jobs.popleft() if self._jobs else None
            if job is None:
                try:
                    self._decoder.step(self.policy_version)
                except Exception as error:  # noqa: BLE001 whatever it is, those who wait are told
                    self._decoder.release(Refusal("engine.invalid-request", f"generation failed: {error!r}"))
                continue
            act, result = job
            try:
                result.set_result(act())
            except BaseException as error:  # noqa: BLE001
                result.set_exception(error)

    # What follows runs on the thread.

    def refuse_released(self, method: str) -> None:
        """PE3."""
        if self._released:
            raise Refusal("engine.released", f"'{method}' was called on a released engine; call restore first")

    def generate(self, generation: Generation) -> None:
        self.refuse_released("generate")
        self._decoder.begin(generation)

    def extend(self, generation: Generation, index: int, attempt: int, tokens: list[int] | None) -> None:
        self._decoder.extend(generation, index, attempt, tokens, self.policy_version)

    def abort(self, generation: Generation) -> None:
        self._decoder.abort(generation, self.policy_version)

    def cancel(self, generation: Generation) -> None:
        self._decoder.cancel(generation)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._decoder.release(Refusal("engine.released", "'generate' was running when the engine was released"))

    def restore(self) -> None:
        self._released = False

    def memory(self) -> tuple[int, int]:
        """Bytes that a release gives back, and those that stay."""
        sizes = [parameter.numel() * 4 for _, parameter in self.named]
        gradients = sum(size for size, (_, each) in zip(sizes, self.named, strict=True) if each.grad is not None)
        return self._decoder.cache_bytes, 3 * sum(sizes) + gradients

    def score(self, batch: dict[str, torch.Tensor], output: str) -> torch.Tensor:
        """`[rows, columns]`; the first column is 0."""
        self.refuse_released(output)
        result = torch.zeros(batch["tokens"].shape)
        with torch.no_grad():
            for rows in self._passes(batch["tokens"]):
                tokens = batch["tokens"][rows].long()
                scores, values = self._scores(tokens, batch.get("temperatures"), rows)
                if output == "values":
                    if values is None:
                        raise invalid("the model has no value head where values were asked for")
                    result[rows, 1:] = values
                else:
                    result[rows, 1:] = scores.gather(2, tokens[:, 1:, None])[..., 0]
        return result

    def forward_backward(self, batch: dict[str, torch.Tensor], spec: PolicyGradient | None) -> dict[str, float]:
        """Adds the gradient of the sum of weight times term to what has accumulated."""
        self.refuse_released("forwardBackward")
        sums = dict.fromkeys(METRICS, 0.0)
        for rows in self._passes(batch["tokens"]):
            part = {name: array[rows] for name, array in batch.items() if name != "temperatures"}
            scores, values = self._scores(part["tokens"].long(), batch.get("temperatures"), rows)
            loss, metrics = weighted_loss(spec, part, scores, values)
            if loss.requires_grad:
                loss.backward()
            for name in METRICS:
                sums[name] += metrics[name]
        return sums

    def optim_step(self, step: Step) -> tuple[float, int]:
        self.refuse_released("optimStep")
        grad_norm = self.optimiser.step(step)
        self.policy_version += 1
        self._decoder.restart()
        return grad_norm, self.policy_version

    def read(self, state: str) -> bytes:
        if state == "checkpoint":
            return encode_checkpoint(self.named, self.optimiser, self.policy_version)
        tensors = self.optimiser.gradients() if state == "gradients" else [each for _, each in self.named]
        return b"".join(each.detach().contiguous().numpy().tobytes() for each in tensors)

    def write(self, state: str, data: bytes, policy_version: int) -> int:
        """All or nothing."""
        if state == "checkpoint":
            self.refuse_released("load")
            self.policy_version = decode_checkpoint(data, self.named, self.optimiser)
            self._decoder.restart()
            return self.policy_version
        if state == "weights":
            self.refuse_released("loadWeights")
        size = sum(parameter.numel() for _, parameter in self.named)
        if len(data) != 4 * size:
            raise invalid(f"{state} have '{len(data)}' bytes where the model has '{size}' parameters of 4")
        flat = torch.frombuffer(bytearray(data), dtype=torch.float32)
        with torch.no_grad():
            for (_, parameter), part in zip(self.named, flat.split([each.numel() for _, each in self.named]), strict=True):
                if state == "gradients":
                    parameter.grad = part.view_as(parameter).clone()
                else:
                    parameter.copy_(part.view_as(parameter))
        if state == "weights":
            self.policy_version = policy_version
            self._decoder.restart()
        return self.policy_version

    def _passes(self, tokens: torch.Tensor) -> list[slice]:
        rows, columns = tokens.shape
        if columns < 2:
            return []
        at_once = max(1, min(PASS_TOKENS // columns, PASS_LOGITS // (columns * self.model.vocab_size)))
        return [slice(first, min(first + at_once, rows)) for first in range(0, rows, at_once)]

    def _scores(
        self, tokens: torch.Tensor, temperatures: torch.Tensor | None, rows: slice
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities of what follows each token but the last, at its row's temperature, and values."""
        logits, values = self.model.predict(tokens[:, :-1])
        if temperatures is not None:
            logits = logits / temperatures[rows, None, None]
        return torch.log_softmax(logits, -1), values
