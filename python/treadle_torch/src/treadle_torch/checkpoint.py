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

from .errors import Refusal
from .optimiser import AdamW
from .parameters import Parameters

MAGIC = 0x4C445254
DIGEST_BYTES = 32


def encode(tensors: list[torch.Tensor]) -> bytes:
    """Float32, whatever they are and wherever."""
    return b"".join(each.detach().float().cpu().contiguous().numpy().tobytes() for each in tensors)


def encode_checkpoint(optimiser: AdamW, policy_version: int) -> bytes:
    parameters = optimiser.parameters
    header = {"format": 1, "policyVersion": policy_version, "steps": optimiser.steps, "layout": _layout(parameters)}
    text = json.dumps(header).encode()
    firsts, seconds = optimiser.moments()
    numbers = encode([*parameters.masters(), *firsts, *seconds])
    body = struct.pack("<II", MAGIC, len(text)) + text + numbers
    return body + hashlib.sha256(body).digest()


def decode_checkpoint(data: bytes, optimiser: AdamW) -> int:
    """Returns the policy version; refuses, and changes nothing, unless everything fits and is finite."""
    parameters = optimiser.parameters
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
    if len(body) != 8 + length + 12 * parameters.num_elements:
        _refuse(f"it has '{len(data)}' bytes")
    numbers = torch.frombuffer(bytearray(body[8 + length :]), dtype=torch.float32)
    parts = [part for third in numbers.split(parameters.num_elements) for part in parameters.split(third)]
    count = len(parameters.names)
    for index, part in enumerate(parts):
        if not part.isfinite().all() or (index >= 2 * count and (part < 0).any()):
            what = ("weights", "first moments", "second moments")[index // count]
            _refuse(f"its {what} of '{parameters.names[index % count]}' are not all numbers that are allowed")
    firsts, seconds = optimiser.moments()
    with torch.no_grad():
        for target, part in zip([*parameters.masters(), *firsts, *seconds], parts, strict=True):
            target.copy_(part)
    optimiser.steps = steps
    parameters.zero()
    parameters.publish()
    return version


def _layout(parameters: Parameters) -> list[dict[str, object]]:
    return [{"name": name, "shape": list(parameter.shape)} for name, parameter in parameters.named]


def _refuse(what: str) -> NoReturn:
    raise Refusal(
        "checkpoint.corrupt",
        f"checkpoint refused: {what}; use an earlier one or the configuration it was written with",
    )
