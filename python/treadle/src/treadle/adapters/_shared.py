"""What the adapters' settings have in common: plain values, as they come from YAML."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..requests import Amdahl, Amount, Between, Elasticity, Profile, Tls
from ..results import Result


def units_of(value: Any) -> Amount:
    """``2``, or ``[1, 8]`` for from one to eight."""
    if isinstance(value, (list, tuple)):
        least, most = value
        return Between(int(least), int(most))
    return float(value)


def connection_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """`token_file`, `tls` (authority, key, certificate) and `tenant`, as arguments of a client."""
    options: dict[str, Any] = {"tenant": config.get("tenant", "")}
    if config.get("token_file"):
        options["token"] = pathlib.Path(config["token_file"]).read_text().strip()
    if config.get("tls") is not None:
        options["tls"] = Tls(**config["tls"])
    return options


@dataclass(frozen=True)
class Reward:
    """A command whose success is the reward: a test suite, with `{parallel}` where its number of processes goes."""

    command: Sequence[str]
    cpu: Amount = 1.0
    duration: float | None = None
    elasticity: Elasticity | None = None
    timeout_seconds: float = 600.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Reward:
        """From `command`, `cpu`, `duration`, `serial_share`, `timeout_seconds`; or `profile`, a file of `treadle actions profile`."""
        timeout = float(config.get("timeout_seconds", 600))
        if config.get("profile"):
            profile = Profile.load(config["profile"])
            most = max(profile.elasticity.by_units)
            cpu = units_of(config["cpu"]) if "cpu" in config else Between(1, most) if most > 1 else 1.0
            return cls(config.get("command", profile.command), cpu, profile.duration, profile.elasticity, timeout)
        cpu = units_of(config.get("cpu", 1))
        share = config.get("serial_share")
        return cls(
            config["command"], cpu, config.get("duration"), None if share is None else Amdahl(float(share)), timeout
        )

    def options(self) -> dict[str, Any]:
        """As arguments of `submit`."""
        varies = isinstance(self.cpu, Between)
        return {
            "kind": "reward",
            "cpu": self.cpu,
            "duration": self.duration,
            "elasticity": self.elasticity if varies else None,
            "timeout_seconds": self.timeout_seconds,
        }


def shown(result: Result) -> str:
    """What a model is told of a command."""
    text = result.text + result.stderr.decode(errors="backslashreplace")
    if result.status != "exited":
        return f"{text}\n[{result.status}]".strip()
    return text if result.succeeded else f"{text}\n[exit code {result.exit_code}]".strip()
