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


def weighted_loss(
    spec: PolicyGradient | None,
    batch: dict[str, torch.Tensor],
    scores: torch.Tensor,
    values: torch.Tensor | None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The sum of weight times term, and the sums that metrics are; without a spec the cross-entropy.

    `batch` has `[rows, columns]` arrays; `scores` are the log-probabilities `[rows, columns - 1, vocabulary]` of the tokens
    from the second on, `values` `[rows, columns - 1]`.
    """
    weights = batch["weights"][:, 1:]
    rows, places = torch.nonzero(weights, as_tuple=True)
    entry = lambda name: batch[name][rows, places + 1].double()  # noqa: E731
    weight = weights[rows, places].double()
    sums = dict.fromkeys(METRICS, 0.0)
    sums["weight"] = weight.sum().item()
    if weight.numel() == 0:
        return scores.sum() * 0, sums
    own = scores[rows, places]
    new = own.gather(1, batch["tokens"][rows, places + 1].long()[:, None])[:, 0].double()
    entropy_coefficient = 0.0 if spec is None else spec.entropy_coefficient
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_coefficient != 0):
        entropy = -(own.exp() * own).sum(-1).double()
    sums["entropy"] = (weight * entropy).sum().item()
    if spec is None:
        loss = -(weight * new).sum()
    else:
        loss = _policy_gradient(spec, batch, entry, rows, weight, new, sums)
        loss = loss - entropy_coefficient * (weight * entropy).sum()
        if spec.value is not None:
            assert values is not None
            error = _clipped_error(spec.value, values[rows, places].double(), entry("oldValues"), entry("returns"))
            sums["value_loss"] = (weight * error).sum().item()
            loss = loss + spec.value.coefficient * (weight * error).sum()
    sums["loss"] = loss.item()
    return loss, sums


def _policy_gradient(spec, batch, entry, rows, weight, new, sums) -> torch.Tensor:
    advantage = entry("advantages")
    # On-policy without old ones: the ratio is 1, and its gradient that of REINFORCE.
    log_ratio = new - (entry("oldLogprobs") if "oldLogprobs" in batch else new.detach())
    if spec.ratio != "token":
        num_rows = batch["weights"].shape[0]
        total = log_ratio.new_zeros(num_rows).index_add(0, rows, log_ratio)
        if spec.ratio == "sequence":
            count = log_ratio.new_zeros(num_rows).index_add(0, rows, torch.ones_like(log_ratio))
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
    sums["clip_fraction"] = (weight * is_clipped).sum().item()
    if "refLogprobs" in batch:
        d = (new - entry("refLogprobs")).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        kl = d**2 / 2 if spec.kl_estimator == "k2" else torch.expm1(-d) + d
        sums["kl"] = (weight * kl).sum().item()
        loss = loss + spec.kl_coefficient * (weight * kl).sum()
    return loss


def _clipped_error(spec: ValueTerm, value, old, target) -> torch.Tensor:
    """PPO's: half of the larger of the squared errors of the value and of the old value moved by at most `clip`."""
    plain = value - target
    moved = old + (value - old).clamp(-spec.clip, spec.clip) - target
    return torch.where(plain.detach() ** 2 >= moved.detach() ** 2, plain**2, moved**2) / 2
