"""Rows of a batch, cut to what counts and laid one after another under a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .attention import Packed


@dataclass(frozen=True)
class Pass:
    """One packed row of the model. Entries are tokens that are predicted, each from the place before it."""

    tokens: torch.Tensor  # [places], on the device
    view: Packed
    # of entries, on the host: their row and column in the batch
    rows: torch.Tensor
    columns: torch.Tensor
    # of entries, on the device: which of the rows of this pass, and where their distribution is made
    groups: torch.Tensor
    places: torch.Tensor


def pack(tokens: torch.Tensor, wanted: torch.Tensor, budget: int, device: torch.device) -> list[Pass]:
    """Passes for the entries `[rows, columns]` that are wanted; a row is read up to its last, and never split.

    Rows of like length share a pass. One that alone exceeds the budget has a pass of its own.
    """
    wanted = wanted.clone()
    wanted[:, :1] = False  # nothing stands before the first token
    lengths = lengths_of(wanted)
    order = lengths.argsort(descending=True, stable=True)
    bins: list[list[int]] = []
    used = 0
    for row in order.tolist():
        length = int(lengths[row])
        if length == 0:
            break
        if not bins or used + length > budget:
            bins.append([])
            used = 0
        bins[-1].append(row)
        used += length
    return [_laid(rows, lengths[rows].tolist(), tokens, wanted, device) for rows in bins]


def lengths_of(wanted: torch.Tensor) -> torch.Tensor:
    """Of each row, the tokens that are read."""
    columns = torch.arange(wanted.shape[1])
    return torch.where(wanted, columns, 0).amax(1) if wanted.numel() else torch.zeros(len(wanted), dtype=torch.long)


def _laid(rows: list[int], lengths: list[int], tokens: torch.Tensor, wanted: torch.Tensor, device: torch.device) -> Pass:
    laid = torch.cat([tokens[row, :length] for row, length in zip(rows, lengths, strict=True)]).long()
    starts = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    which, columns = torch.nonzero(wanted[rows], as_tuple=True)
    places = starts[which] + columns - 1
    return Pass(
        laid.to(device), Packed(lengths, device), torch.tensor(rows)[which], columns, which.to(device), places.to(device)
    )
