"""What an action costs and gains, and the settings of a connection."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ._generated import actions_pb2 as messages


@dataclass(frozen=True)
class Between:
    """As many units as are worth it, from `least` to `most`."""

    least: int
    most: int


@dataclass(frozen=True)
class OneOf:
    """One of these numbers of units."""

    units: tuple[int, ...]


#: of one resource; only one of an action's may vary
Amount = Union[float, Between, OneOf]


@dataclass(frozen=True)
class Amdahl:
    """`serial_share`, 0 to 1, of the work gains nothing from more units."""

    serial_share: float


@dataclass(frozen=True)
class Power:
    """On m units it lasts T / m**exponent seconds."""

    exponent: float


@dataclass(frozen=True)
class Efficiency:
    """Measured E(m) by units: on m units it lasts T / (E(m) m) seconds."""

    by_units: Mapping[int, float]


@dataclass(frozen=True)
class Seconds:
    """Measured seconds by units, one for each number that the cost allows."""

    by_units: Mapping[int, float]


Elasticity = Union[Amdahl, Power, Efficiency, Seconds]


@dataclass(frozen=True)
class Profile:
    """What `treadle actions profile` measured of a command."""

    kind: str
    #: with `{parallel}` where the units go
    command: tuple[str, ...]
    #: seconds on one unit
    duration: float
    elasticity: Efficiency

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Profile:
        """Reads such a file as `.treadle/actions/<kind>.json`."""
        stored = json.loads(pathlib.Path(path).read_text())
        points = {point["units"]: point["efficiency"] for point in stored["elasticity"]["points"]}
        return cls(stored["kind"], tuple(stored["command"]), stored["duration"], Efficiency(points))


@dataclass(frozen=True)
class Tls:
    """PEM files. Without `authority` the certificate is checked against those of gRPC; the last two are for a server that asks."""

    authority: str | pathlib.Path | None = None
    key: str | pathlib.Path | None = None
    certificate: str | pathlib.Path | None = None


@dataclass(frozen=True)
class Retry:
    """How long a call is repeated while nobody answers, and the wait between two tries, which doubles up to `longest_wait`."""

    seconds: float = 30.0
    first_wait: float = 0.1
    longest_wait: float = 2.0


def amount_of(amount: Amount) -> messages.Amount:
    if isinstance(amount, Between):
        return messages.Amount(range=messages.UnitRange(min=amount.least, max=amount.most))
    if isinstance(amount, OneOf):
        return messages.Amount(set=messages.UnitSet(units=amount.units))
    return messages.Amount(fixed=amount)


def key_of(cost: Mapping[str, Amount]) -> str:
    """The resource that varies; empty where none does."""
    return next((name for name, amount in cost.items() if isinstance(amount, (Between, OneOf))), "")


def elasticity_of(elasticity: Elasticity | None) -> messages.Elasticity | None:
    if elasticity is None:
        return None
    if isinstance(elasticity, Amdahl):
        return messages.Elasticity(amdahl=elasticity.serial_share)
    if isinstance(elasticity, Power):
        return messages.Elasticity(power=elasticity.exponent)
    points = messages.UnitPoints(
        points=[messages.UnitPoint(units=units, value=value) for units, value in elasticity.by_units.items()]
    )
    if isinstance(elasticity, Efficiency):
        return messages.Elasticity(efficiency=points)
    return messages.Elasticity(seconds=points)


def bytes_of(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


def body_of(body: bytes | str, value: Any, headers: Mapping[str, str] | None) -> tuple[bytes, dict[str, str]]:
    """Of a request to a service, with its headers: as it is, or a value as JSON."""
    if value is None:
        return bytes_of(body), dict(headers or {})
    if body:
        raise ValueError("body and json were both given; leave out one of them")
    named = {name: own for name, own in (headers or {}).items() if name.lower() != "content-type"}
    return json.dumps(value).encode(), {**named, "content-type": "application/json"}


def program_of(command: Sequence[str]) -> str:
    """What statistics are kept by unless the caller says otherwise: the program's name without its folder."""
    return command[0].rpartition("/")[2] if command and command[0] else "command"
