"""Checkpoints in the format of packages/engines/src/checkpoint.ts.

4 bytes `TRDL`, 4 bytes length of the header (little-endian), the header as JSON, then parameters, first and second moments
as little-endian float32, then the SHA-256 of everything before it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import NoReturn

import torch

from .errors import Refusal
from .optimiser import AdamW
from .parameters import Parameters

MAGIC = 0x4C445254
DIGEST_BYTES = 32


def encode(tensors: list[torch.Tensor]) -> bytes:
    """Float32, whatever they are and wherever."""
    return b"".join(each.detach().float().cpu().contiguous().numpy().tobytes() for each in tensors)


@dataclass(frozen=True)
class Checkpoint:
    """Parameters, first moments and second moments, each whole; none in a process that is not the first."""

    policy_version: int
    steps: int
    tensors: list[torch.Tensor] | None


def encode_checkpoint(
    optimiser: AdamW, policy_version: int, wholes: list[torch.Tensor], base: str | None = None
) -> bytes:
    """Of parameters, first and second moments; `base`: of what is below an adapter, the digest (LA3)."""
    layout = _layout(optimiser.parameters)
    header: dict[str, object] = {"format": 1, "policyVersion": policy_version, "steps": optimiser.steps, "layout": layout}
    if base is not None:
        header["base"] = base
    text = json.dumps(header).encode()
    body = struct.pack("<II", MAGIC, len(text)) + text + encode(wholes)
    return body + hashlib.sha256(body).digest()


def read_checkpoint(data: bytes, parameters: Parameters, base: str | None = None) -> Checkpoint:
    """Refuses unless everything fits and is finite."""
    body = data[:-DIGEST_BYTES]
    if len(data) < 8 + DIGEST_BYTES or struct.unpack_from("<I", data)[0] != MAGIC:
        _refuse("it is no checkpoint of an engine")
    if hashlib.sha256(body).digest() != data[-DIGEST_BYTES:]:
        _refuse("its checksum does not match its content")
    (length,) = struct.unpack_from("<I", data, 4)
    try:
        header = json.loads(body[8 : 8 + length])
        version, steps, layout = int(header["policyVersion"]), int(header["steps"]), header["layout"]
    except (ValueError, KeyError, TypeError):
        _refuse("its header cannot be read")
    if layout != _layout(parameters):
        _refuse("it holds parameters of another model")
    if header.get("base") != base:
        _refuse("it is of an adapter over other weights, or of another alpha")
    if len(body) != 8 + length + 12 * parameters.num_elements:
        _refuse(f"it has '{len(data)}' bytes")
    numbers = torch.frombuffer(bytearray(body[8 + length :]), dtype=torch.float32)
    parts = [part for third in numbers.split(parameters.num_elements) for part in parameters.split(third)]
    count = len(parameters.names)
    for index, part in enumerate(parts):
        if not part.isfinite().all() or (index >= 2 * count and (part < 0).any()):
            what = ("weights", "first moments", "second moments")[index // count]
            _refuse(f"its {what} of '{parameters.names[index % count]}' are not all numbers that are allowed")
    return Checkpoint(version, steps, parts)


@torch.no_grad()
def apply_checkpoint(checkpoint: Checkpoint, optimiser: AdamW) -> None:
    parameters = optimiser.parameters
    firsts, seconds = optimiser.moments()
    targets = [*parameters.masters(), *firsts, *seconds]
    for target, part in zip(targets, parameters.parts(checkpoint.tensors, of_each=3), strict=True):
        target.copy_(part)
    optimiser.steps = checkpoint.steps
    parameters.zero()
    parameters.publish()


def _layout(parameters: Parameters) -> list[dict[str, object]]:
    return [{"name": name, "shape": list(shape)} for name, shape in parameters.layout]


def _refuse(what: str) -> NoReturn:
    raise Refusal(
        "checkpoint.corrupt",
        f"checkpoint refused: {what}; use an earlier one or the configuration it was written with",
    )
