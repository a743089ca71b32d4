"""Who has a part in an engine's process: the client that started it, its owner, and those that have attached to its module.

MC1 a tag is on the device while some client has restored it, and leaves with the last that releases it.
MC2 a client's release, pause and abort are its own: they end nothing of another's, and a call is refused unless its own client has
    restored what it needs.
MC3 an attached client is there as long as its call of `Attach` is: with it end its generations, its pause and its needs.
"""

from __future__ import annotations

from collections.abc import Iterable

OWNER = ""


class Needs:
    """MC1. A cache counts as needed by those alone that have generated with it: an owner that only trains has restored one, too."""

    def __init__(self) -> None:
        self._tags: dict[str, set[str]] = {OWNER: set()}
        # Since their last release of it, and ever.
        self._with_cache: set[str] = set()
        self._generated: set[str] = set()

    def attach(self, client: str) -> None:
        self._tags[client] = set()

    def knows(self, client: str) -> bool:
        return client in self._tags

    def has(self, client: str, *tags: str) -> bool:
        return self._tags.get(client, set()).issuperset(tags)

    def restore(self, client: str, tags: Iterable[str]) -> list[str]:
        """Those that come to the device: nobody else needs them there yet."""
        own = self._tags[client]
        coming = [tag for tag in tags if tag not in own]
        own.update(coming)
        return [tag for tag in coming if not self._others_need(client, tag)]

    def release(self, client: str, tags: Iterable[str]) -> list[str]:
        """Those that leave the device: nobody needs them any more."""
        own = self._tags.get(client, set())
        lost = [tag for tag in tags if tag in own]
        own.difference_update(lost)
        leaving = [tag for tag in lost if not self._others_need(client, tag)]
        if "cache" in lost:
            self._with_cache.discard(client)
        return leaving

    def forget(self, client: str) -> list[str]:
        """MC3."""
        leaving = self.release(client, list(self._tags.get(client, ())))
        self._tags.pop(client, None)
        self._generated.discard(client)
        return leaving

    def generates(self, client: str) -> None:
        self._with_cache.add(client)
        self._generated.add(client)

    def has_cache(self, client: str) -> bool:
        return client in self._with_cache

    def has_generated(self, client: str) -> bool:
        return client in self._generated

    def _others_need(self, client: str, tag: str) -> bool:
        return any(
            tag in own and (tag != "cache" or other in self._with_cache)
            for other, own in self._tags.items()
            if other != client
        )
