"""Checkpoints in the format of packages/engines/src/checkpoint.ts.

4 bytes `TRDL`, 4 bytes length of the header (little-endian), the header as JSON, then parameters, first and second moments
as little-endian float32, then the SHA-256 of everything before it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import NoReturn

import torch
from torch import nn

from .errors import Refusal
from .optimiser import AdamW

MAGIC = 0x4C445254
DIGEST_BYTES = 32


def _layout(named: list[tuple[str, nn.Parameter]]) -> list[dict[str, object]]:
    return [{"name": name, "shape": list(parameter.shape)} for name, parameter in named]


def encode_checkpoint(named: list[tuple[str, nn.Parameter]], optimiser: AdamW, policy_version: int) -> bytes:
    header = {"format": 1, "policyVersion": policy_version, "steps": optimiser.steps, "layout": _layout(named)}
    text = json.dumps(header).encode()
    tensors = [*(each for _, each in named), *optimiser.first, *optimiser.second]
    numbers = b"".join(each.detach().contiguous().numpy().tobytes() for each in tensors)
    body = struct.pack("<II", MAGIC, len(text)) + text + numbers
    return body + hashlib.sha256(body).digest()


def decode_checkpoint(data: bytes, named: list[tuple[str, nn.Parameter]], optimiser: AdamW) -> int:
    """Returns the policy version; refuses, and changes nothing, unless everything fits and is finite."""
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
    if layout != _layout(named):
        _refuse("it holds parameters of another model")
    size = sum(parameter.numel() for _, parameter in named)
    if len(body) != 8 + length + 12 * size:
        _refuse(f"it has '{len(data)}' bytes")
    numbers = torch.frombuffer(bytearray(body[8 + length :]), dtype=torch.float32)
    parts = numbers.split([parameter.numel() for _, parameter in named] * 3)
    count = len(named)
    for index, part in enumerate(parts):
        if not part.isfinite().all() or (index >= 2 * count and (part < 0).any()):
            what = ("weights", "first moments", "second moments")[index // count]
            _refuse(f"its {what} of '{named[index % count][0]}' are not all numbers that are allowed")
    targets = [*(each for _, each in named), *optimiser.first, *optimiser.second]
    with torch.no_grad():
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part.view_as(target))
    optimiser.steps = steps
    optimiser.zero()
    return version


def _refuse(what: str) -> NoReturn:
    raise Refusal(
        "checkpoint.corrupt",
        f"checkpoint refused: {what}; use an earlier one or the configuration it was written with",
    )
