"""Where a model is computed, and in which numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .errors import Refusal

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Placement:
    """`dtype` is that of forward and backward passes and of the cache; what is trained is kept in float32."""

    device: torch.device
    dtype: torch.dtype

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes, as the driver and PyTorch's allocator count them; all 0 on the CPU."""

    free: int = 0
    total: int = 0
    allocated: int = 0
    reserved: int = 0


HOST = Placement(torch.device("cpu"), torch.float32)


def place(device: str, dtype: str, rank: int = 0, size: int = 1) -> Placement:
    """Of one of as many processes that have a device each."""
    if dtype not in DTYPES:
        raise _config(f"engine.dtype is '{dtype}'; allowed are {_quoted(DTYPES)}")
    if device not in ("auto", "cpu", "cuda"):
        raise _config(f"engine.device is '{device}'; allowed are 'auto', 'cpu' and 'cuda'")
    has_cuda = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        built = torch.version.cuda
        why = f"PyTorch {torch.__version__} is built for CUDA {built}, and finds no device" if built else f"PyTorch {torch.__version__} is built for CPUs alone"
        raise _config(
            f"engine.device is 'cuda', and {why}; see what nvidia-smi and CUDA_VISIBLE_DEVICES say, install a build of "
            "PyTorch for CUDA in the environment of engine.python, or set engine.device to 'cpu'"
        )
    if has_cuda and dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name()
        raise _config(f"engine.dtype is 'bfloat16', which the device '{name}' does not compute; set it to 'float32'")
    if not has_cuda:
        return Placement(torch.device("cpu"), DTYPES[dtype])
    if size > 1:
        if (count := torch.cuda.device_count()) < size:
            raise _config(f"the engine has '{size}' processes, and PyTorch finds '{count}' devices; see what CUDA_VISIBLE_DEVICES says")
        torch.cuda.set_device(rank)
    return Placement(torch.device("cuda", torch.cuda.current_device()), DTYPES[dtype])


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes."""
    return sum(each.numel() * each.element_size() for each in tensors)


def measure(placement: Placement) -> DeviceMemory:
    if not placement.is_cuda:
        return DeviceMemory()
    torch.cuda.synchronize(placement.device)
    free, total = torch.cuda.mem_get_info(placement.device)
    allocated, reserved = torch.cuda.memory_allocated(placement.device), torch.cuda.memory_reserved(placement.device)
    return DeviceMemory(free, total, allocated, reserved)


def _quoted(names: object) -> str:
    return " and ".join(f"'{name}'" for name in names)  # type: ignore[attr-defined]


def _config(message: str) -> Refusal:
    return Refusal("config.invalid", message)
