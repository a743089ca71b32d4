"""Tensors that leave the device for pinned memory of the host, which copies to and from it at the speed of the bus."""

from __future__ import annotations

import torch

from .device import Placement, size_of

# Pinned memory comes in powers of two: tensors share blocks of this size, and few bytes are wasted.
BLOCK_BYTES = 2**30
ALIGNMENT = 512


class Offload:
    """Keeps its pinned memory, which is slow to get, for the next release. Where the device is the host, nothing moves."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._blocks: list[torch.Tensor] = []

    @torch.no_grad()
    def release(self, tensors: list[torch.Tensor]) -> int:
        """Returns how many bytes moved. The tensors are the same objects, with their data on the host."""
        leaving = [each for each in tensors if each.device.type != "cpu"]
        places = self._places(leaving)
        for tensor, place in zip(leaving, places, strict=True):
            place.copy_(tensor, non_blocking=True)
        if leaving:
            torch.cuda.synchronize(self._placement.device)
        for tensor, place in zip(leaving, places, strict=True):
            tensor.data = place
        return size_of(leaving)

    @torch.no_grad()
    def restore(self, tensors: list[torch.Tensor]) -> int:
        """All or nothing: where the device has no room for one of them, all are as they were."""
        coming = [each for each in tensors if each.device != self._placement.device]
        left = [each.data for each in coming]
        try:
            for tensor in coming:
                tensor.data = tensor.detach().to(self._placement.device, non_blocking=True)
        except torch.OutOfMemoryError:
            for tensor, data in zip(coming, left, strict=True):
                tensor.data = data
            raise
        return size_of(coming)

    def _places(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """One after another in the blocks; the same for the same sizes."""
        places: list[torch.Tensor] = []
        block, offset = -1, 0
        for tensor in tensors:
            num_bytes = tensor.numel() * tensor.element_size()
            if block < 0 or offset + num_bytes > len(self._blocks[block]):
                block, offset = block + 1, 0
                if block == len(self._blocks) or num_bytes > len(self._blocks[block]):
                    made = torch.empty(max(BLOCK_BYTES, num_bytes), dtype=torch.uint8, pin_memory=True)
                    self._blocks[block : block + 1] = [made]
            part = self._blocks[block][offset : offset + num_bytes]
            places.append(part.view(tensor.dtype).view(tensor.shape))
            offset += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return places
