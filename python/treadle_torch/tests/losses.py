"""Losses of packed batches, and their gradients, as the engine finds them: JSON in on stdin, JSON out on stdout.

Each distribution has one token, whose log-probability is given and whose entropy is -p log p.
"""

import json
import sys

import torch

from treadle_torch.losses import Entries, PolicyGradient, ValueTerm, weighted_loss


def evaluate(case):
    spec, rows, columns = case["spec"], case["rows"], case["columns"]
    names = ("weights", "advantages", "oldLogprobs", "refLogprobs", "returns", "oldValues")
    given = lambda name: torch.tensor(case[name], dtype=torch.float64).reshape(rows, columns)[:, 1:]
    at = torch.nonzero(given("weights"), as_tuple=True)
    arrays = {name: given(name)[at] for name in names if case.get(name) is not None}
    logprobs, values = (given(name).clone().requires_grad_() for name in ("logprobs", "values"))
    chosen = logprobs[at]
    value = spec.get("value")
    loss, sums = weighted_loss(
        PolicyGradient(
            ratio=spec["ratio"],
            surrogate=spec.get("surrogate", "clipped"),
            clip_low=spec["clipLow"],
            clip_high=spec["clipHigh"],
            dual_clip=spec.get("dualClip"),
            kl_coefficient=spec["klCoefficient"],
            kl_estimator=spec.get("klEstimator", "k3"),
            entropy_coefficient=spec["entropyCoefficient"],
            value=ValueTerm(value["coefficient"], value["clip"]) if value else None,
        ),
        Entries(at[0].unique(return_inverse=True)[1], arrays, chosen, -chosen.exp() * chosen, values[at]),
    )
    if not loss.requires_grad:
        loss = loss + 0 * logprobs.sum()
    loss.backward()
    padded = lambda x: torch.nn.functional.pad(torch.zeros_like(x) if x.grad is None else x.grad, (1, 0)).flatten().tolist()
    return {"sums": {name: float(each) for name, each in sums.items()}, "logprobs": padded(logprobs), "values": padded(values)}


json.dump([evaluate(case) for case in json.load(sys.stdin)], sys.stdout)
