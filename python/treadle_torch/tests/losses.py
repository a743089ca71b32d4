"""Losses of packed batches, and their gradients, as the engine finds them: JSON in on stdin, JSON out on stdout.

Each distribution has one token, whose log-probability is given and whose entropy is -p log p.
"""

import json
import sys

import torch

from treadle_torch.losses import PolicyGradient, ValueTerm, weighted_loss


def evaluate(case):
    spec, rows, columns = case["spec"], case["rows"], case["columns"]
    names = ("weights", "advantages", "oldLogprobs", "refLogprobs", "returns", "oldValues")
    batch = {
        name: torch.tensor(case[name], dtype=torch.float64).reshape(rows, columns)
        for name in names
        if case.get(name) is not None
    }
    batch["tokens"] = torch.zeros(rows, columns, dtype=torch.int32)
    read = lambda name: torch.tensor(case[name], dtype=torch.float64).reshape(rows, columns)[:, 1:].clone().requires_grad_()
    logprobs, values = read("logprobs"), read("values")
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
        batch,
        logprobs[..., None],
        values,
    )
    loss.backward()
    padded = lambda x: torch.nn.functional.pad(torch.zeros_like(x) if x.grad is None else x.grad, (1, 0)).flatten().tolist()
    return {"sums": sums, "logprobs": padded(logprobs), "values": padded(values)}


json.dump([evaluate(case) for case in json.load(sys.stdin)], sys.stdout)
