"""Losses of packed batches and their gradients by PyTorch's autograd: JSON in on stdin, JSON out on stdout."""

import json
import sys

import torch


def tensor(values, rows, columns):
    return torch.tensor(values, dtype=torch.float64).reshape(rows, columns)


def within(x):
    return torch.clamp(x, -20, 20)


def evaluate(case):
    spec, rows, columns = case["spec"], case["rows"], case["columns"]
    read = lambda name: tensor(case[name], rows, columns)
    weights, advantages, old = read("weights"), read("advantages"), read("oldLogprobs")
    counted = weights != 0
    now, entropies, values = (read(name).requires_grad_() for name in ("logprobs", "entropies", "values"))
    log_ratio = torch.where(counted, now - old, 0.0)
    if spec["ratio"] != "token":
        total = log_ratio.sum(-1, keepdim=True)
        if spec["ratio"] == "sequence":
            total = total / counted.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = total.expand(rows, columns)
    ratio = within(log_ratio).exp()
    bounded = ratio.clamp(1 - spec["clipLow"], 1 + spec["clipHigh"])
    if spec.get("surrogate") == "cispo":
        surrogate = bounded.detach() * advantages * now
    else:
        surrogate = torch.minimum(ratio * advantages, bounded * advantages)
        if "dualClip" in spec:
            surrogate = torch.where(
                advantages < 0, torch.maximum(surrogate, spec["dualClip"] * advantages), surrogate
            )
    term = -surrogate - spec["entropyCoefficient"] * entropies
    if spec["klCoefficient"] > 0:
        d = within(now - read("refLogprobs"))
        kl = d.square() / 2 if spec.get("klEstimator") == "k2" else torch.exp(-d) - 1 + d
        term = term + spec["klCoefficient"] * kl
    if spec.get("value"):
        before, target = read("oldValues"), read("returns")
        clip = spec["value"]["clip"]
        moved = before + torch.clamp(values - before, -clip, clip)
        error = torch.maximum((values - target).square(), (moved - target).square()) / 2
        term = term + spec["value"]["coefficient"] * error
    loss = torch.where(counted, weights * term, 0.0).sum()
    loss.backward()
    slopes = lambda x: [0.0] * (rows * columns) if x.grad is None else x.grad.flatten().tolist()
    return {"loss": loss.item(), "logprobs": slopes(now), "entropies": slopes(entropies), "values": slopes(values)}


json.dump([evaluate(case) for case in json.load(sys.stdin)], sys.stdout)
