"""What one engine has published in its device's memory: the last version, and those before it that somebody maps still."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .errors import Refusal
from .weight_blocks import Block, Blocks, Offer, rows_of
from .weight_files import Device, Obstacle, Store, Ticket, layout_of


class Offers:
    """`blocks`: none where nothing is published on the device."""

    def __init__(self, blocks: Blocks | None) -> None:
        self.blocks = blocks
        self._offers: list[tuple[Ticket, Offer]] = []

    @property
    def uuid(self) -> str:
        """Of the device whose memory is mapped; empty where none is."""
        return "" if self.blocks is None else self.blocks.uuid

    @property
    def num_bytes(self) -> int:
        """On the device now."""
        return sum(offer.num_bytes for _, offer in self._offers)

    @property
    def most_bytes(self) -> int:
        """With the last back on the device."""
        return max(self._offers[-1][1].size, self.num_bytes) if self._offers else 0

    def publish(
        self, store: Store, policy_version: int, named: Sequence[tuple[str, torch.Tensor]], *, is_released: bool
    ) -> Ticket | Obstacle | None:
        """None where that is not possible."""
        if self.blocks is None:
            return None
        rows = 0 if is_released else rows_of(layout_of(named))
        block = self._take_block(rows)
        if rows > 0 and block is None:
            block = self.blocks.make(rows)
        if block is None:
            return None
        try:
            offer = Offer(block, named)
            ticket = store.announce(policy_version, offer.tensors, Device(self.blocks.uuid, offer.handle))
            if isinstance(ticket, Ticket):
                offer.open_to_others(ticket)
        except torch.OutOfMemoryError:
            block.free()
            return None
        except BaseException:
            block.free()
            raise
        if isinstance(ticket, Obstacle):
            block.free()
            return ticket
        self._offers.append((ticket, offer))
        return ticket

    def write_file(self, store: Store | None, folder: str) -> Ticket | Obstacle:
        """Of what was published on the device, for whom it is not on the same."""
        for ticket, offer in self._offers[-1:]:
            if store is not None and ticket.folder == folder:
                return store.add_file(ticket, offer.named())
        raise Refusal("engine.weights-mismatch", f"weights in '{folder}' are not there any more: newer ones were published")

    def leave(self) -> None:
        """The device."""
        for _, offer in self._offers:
            offer.leave()

    def _take_block(self, rows: int) -> Block | None:
        """Of what newer weights are about to replace: one of so many rows. The others that nobody maps are freed (WB2)."""
        taken = None
        for _, offer in self._offers:
            block = offer.take()
            if block is not None and taken is None and len(block.rows) == rows:
                taken = block
            elif block is not None:
                block.free()
        self._offers = [(ticket, offer) for ticket, offer in self._offers if offer.num_bytes > 0]
        return taken
