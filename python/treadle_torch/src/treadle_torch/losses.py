"""The losses of `LossSpec`: the meaning that packages/learning/src/reference-loss.ts defines, found by autograd.

Entries of weight 0 are never read, so they contribute exactly nothing, whatever they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Log-ratios count as at most this far from 0, and have no gradient beyond (`maxLogRatio` of contracts).
MAX_LOG_RATIO = 20.0

METRICS = ("loss", "weight", "kl", "entropy", "clip_fraction", "value_loss")


@dataclass(frozen=True)
class ValueTerm:
    coefficient: float
    clip: float


@dataclass(frozen=True)
class PolicyGradient:
    ratio: str
    surrogate: str
    clip_low: float
    clip_high: float
    dual_clip: float | None
    kl_coefficient: float
    kl_estimator: str
    entropy_coefficient: float
    value: ValueTerm | None


@dataclass(frozen=True)
class Entries:
    """Predicted tokens of some rows: the arrays of their batch, one number an entry, and what the model says of them."""

    rows: torch.Tensor
    given: dict[str, torch.Tensor]
    logprobs: torch.Tensor
    entropies: torch.Tensor
    values: torch.Tensor | None


def weighted_loss(spec: PolicyGradient | None, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The sum of weight times term, and the sums that metrics are; without a spec the cross-entropy.

    Computed in float64, where the entries are; nothing waits for a device.
    """
    weight = entries.given["weights"].double()
    new = entries.logprobs.double()
    entropy = entries.entropies.double()
    sums = dict.fromkeys(METRICS, weight.new_zeros(()))
    sums["weight"] = weight.sum()
    sums["entropy"] = (weight * entropy.detach()).sum()
    if spec is None:
        loss = -(weight * new).sum()
    else:
        loss = _policy_gradient(spec, entries, weight, new, sums)
        if spec.entropy_coefficient != 0:
            loss = loss - spec.entropy_coefficient * (weight * entropy).sum()
        if spec.value is not None:
            assert entries.values is not None
            old, target = (entries.given[name].double() for name in ("oldValues", "returns"))
            error = (weight * _clipped_error(spec.value, entries.values.double(), old, target)).sum()
            sums["value_loss"] = error.detach()
            loss = loss + spec.value.coefficient * error
    sums["loss"] = loss.detach()
    return loss, sums


def _policy_gradient(spec: PolicyGradient, entries: Entries, weight: torch.Tensor, new: torch.Tensor, sums: dict) -> torch.Tensor:
    given, rows = entries.given, entries.rows
    advantage = given["advantages"].double()
    # On-policy without old ones: the ratio is 1, and its gradient that of REINFORCE.
    log_ratio = new - (given["oldLogprobs"].double() if "oldLogprobs" in given else new.detach())
    if spec.ratio != "token":
        # Groups in order of entries, so that nothing asks the device how many rows there are.
        total = log_ratio.new_zeros(len(rows)).index_add(0, rows, log_ratio)
        if spec.ratio == "sequence":
            count = log_ratio.new_zeros(len(rows)).index_add(0, rows, torch.ones_like(log_ratio))
            total = total / count.clamp(min=1)
        log_ratio = total[rows]
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounded = ratio.detach().clamp(1 - spec.clip_low, 1 + spec.clip_high)
    if spec.surrogate == "cispo":
        loss = -(weight * bounded * advantage * new).sum()
        is_clipped = bounded != ratio.detach()
    else:
        plain = ratio * advantage
        objective = torch.minimum(plain.detach(), bounded * advantage)
        if spec.dual_clip is not None:
            objective = torch.where(advantage < 0, torch.maximum(objective, spec.dual_clip * advantage), objective)
        # Where both sides of a bound are equal, the gradient is that of the plain one.
        is_clipped = objective != plain.detach()
        loss = -(weight * torch.where(is_clipped, objective, plain)).sum()
    sums["clip_fraction"] = (weight * is_clipped).sum().detach()
    if "refLogprobs" in given:
        d = (new - given["refLogprobs"].double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        kl = d**2 / 2 if spec.kl_estimator == "k2" else torch.expm1(-d) + d
        sums["kl"] = (weight * kl).sum().detach()
        loss = loss + spec.kl_coefficient * (weight * kl).sum()
    return loss


def _clipped_error(spec: ValueTerm, value: torch.Tensor, old: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """PPO's: half of the larger of the squared errors of the value and of the old value moved by at most `clip`."""
    plain = value - target
    moved = old + (value - old).clamp(-spec.clip, spec.clip) - target
    return torch.where(plain.detach() ** 2 >= moved.detach() ** 2, plain**2, moved**2) / 2
