"""Low-rank adapters (LoRA, arXiv 2106.09685): beside each adapted matrix W a pair is trained, and W + scale · B A computes.

LA1 an adapter begins as nothing: B is 0, so the first weights are those below it. A is drawn by the seed, alike in all processes.
LA2 whoever gets weights gets whole ones, with the adapter merged in: samplers, servers and other tools know nothing of it.
LA3 what is below an adapter never changes. A checkpoint has the adapter alone, and is refused over other weights.
LA4 what is published has the adapter alone, too, as PEFT lays it out, in the numbers that passes compute with: over the weights below
    it, it is the merged ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn

from .crc import crc32
from .errors import Refusal

A, B = "lora_a", "lora_b"
THREADS = 4


@dataclass(frozen=True)
class AdapterOptions:
    """`alpha` over the rank is the scale; `targets`: last parts of the names of the matrices that are adapted, as `q_proj`."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapted(nn.Linear):
    """In place of a linear layer, whose parameters it has under the same names; those are not trained."""

    def __init__(self, inner: nn.Linear, options: AdapterOptions) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = inner.in_features, inner.out_features
        self.weight, self.bias, self.scale = inner.weight, inner.bias, options.scale
        device, dtype = inner.weight.device, inner.weight.dtype
        first = torch.empty((options.rank, self.in_features), device=device)
        bound = math.sqrt(1 / self.in_features)  # as layers of this shape are drawn
        self.lora_a = nn.Parameter(first.uniform_(-bound, bound).to(dtype))
        self.lora_b = nn.Parameter(torch.zeros((self.out_features, options.rank), device=device, dtype=dtype))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return super().forward(given) + (given @ self.lora_a.T) @ self.lora_b.T * self.scale


def adapt(model: nn.Module, options: AdapterOptions, seed: int) -> None:
    """The layers of a model in place; nothing else of it is trained any more."""
    head = model.get_output_embeddings()
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear) and each is not head]
    known = sorted({name.rpartition(".")[2] for name, _ in layers})
    for target in options.targets:
        if target not in known:
            allowed = ", ".join(f"'{each}'" for each in known)
            raise Refusal("config.invalid", f"engine.lora.targets names '{target}', which this model does not have; it has {allowed}")
    model.requires_grad_(False)
    torch.manual_seed(seed)
    for name, layer in layers:
        if name.rpartition(".")[2] in options.targets:
            model.set_submodule(name, Adapted(layer, options))


def is_of_adapter(name: str) -> bool:
    return name.rpartition(".")[2] in (A, B)


def merged(name: str, tensors: Mapping[str, torch.Tensor], scale: float) -> torch.Tensor:
    """LA2. In the type of what is trained."""
    below = tensors[name]
    layer, _, kind = name.rpartition(".")
    second = tensors.get(f"{layer}.{B}") if kind == "weight" else None
    if second is None:
        return below
    change = second.float() @ tensors[f"{layer}.{A}"].float()
    return (below.float() + scale * change).to(second.dtype)


def exported(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """LA4. Under the names that PEFT has for them; a value head is no part of it."""
    kinds = {A: "lora_A", B: "lora_B"}
    return [
        (f"base_model.model.{layer}.{kinds[kind]}.weight", each)
        for name, each in tensors.items()
        for layer, _, kind in [name.rpartition(".")]
        if kind in kinds
    ]


def config_of(options: AdapterOptions, path: str | None) -> bytes:
    """LA4. `path`: of the model below."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": path or "",
        "r": options.rank,
        "lora_alpha": options.alpha,
        "target_modules": sorted(options.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    return json.dumps(config, indent=2).encode()


def digest_of(tensors: Iterable[torch.Tensor], scale: float) -> str:
    """LA3. Of what is on the host, with the adapter's scale; it is no seal against somebody who wants two to be alike."""

    def checksum(tensor: torch.Tensor) -> int:
        return crc32(memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()))

    with ThreadPoolExecutor(THREADS) as pool:
        each = list(pool.map(checksum, tensors))
    return f"{crc32(str((each, scale)).encode()):08x}"
