"""What `bench` compares the embedded engine with: the same model and batch in PyTorch, eager, on one thread.

Reads a JSON list of cases on standard input; prints a list of least processor milliseconds in the same order.
"""

import json
import math
import sys
import time

import torch
import torch.nn.functional as F

EPSILON = 1e-5


def parameter(*shape):
    return torch.nn.Parameter(torch.randn(*shape) / math.sqrt(shape[0]))


def gain(width):
    return torch.nn.Parameter(torch.ones(width))


class Transformer:
    """Pre-norm (RMS), learned positions, causal attention, squared-ReLU MLP: `transformer-model.ts`."""

    def __init__(self, vocab, layers, width, heads, context):
        self.width, self.heads = width, heads
        self.token, self.position = parameter(vocab, width), parameter(context, width)
        self.layers = [
            (
                gain(width),
                parameter(width, 3 * width),
                parameter(width, width),
                gain(width),
                parameter(width, 4 * width),
                parameter(4 * width, width),
            )
            for _ in range(layers)
        ]
        self.norm, self.output = gain(width), parameter(width, vocab)

    def layer(self, x, parameters, cache, start):
        gain1, into, out, gain2, up, down = parameters
        rows, columns, width = x.shape
        projected = F.rms_norm(x, (width,), gain1, EPSILON) @ into
        query, key, value = projected.view(rows, columns, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            keys, values = cache
            keys[:, :, start : start + columns], values[:, :, start : start + columns] = key, value
            key, value = keys[:, :, : start + columns], values[:, :, : start + columns]
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=columns > 1)
        x = x + attended.transpose(1, 2).reshape(rows, columns, width) @ out
        return x + torch.square(F.relu(F.rms_norm(x, (width,), gain2, EPSILON) @ up)) @ down

    def logprobs(self, tokens, caches=None, start=0):
        x = F.embedding(tokens, self.token) + self.position[start : start + tokens.shape[1]]
        for index, parameters in enumerate(self.layers):
            x = self.layer(x, parameters, caches[index] if caches else None, start)
        return F.log_softmax(F.rms_norm(x, (self.width,), self.norm, EPSILON) @ self.output, -1)

    def chosen(self, tokens):
        return self.logprobs(tokens[:, :-1]).gather(2, tokens[:, 1:, None]).squeeze(2)


def generate(model, prompts, count, context):
    rows, start = prompts.shape
    shape = (rows, model.heads, context, model.width // model.heads)
    caches = [(torch.empty(shape), torch.empty(shape)) for _ in model.layers]
    logprobs = model.logprobs(prompts, caches)[:, -1]
    tokens, chosen = [], []
    for step in range(count):
        token = torch.multinomial(logprobs.exp(), 1)
        tokens.append(token)
        chosen.append(logprobs.gather(1, token))
        if step < count - 1:
            logprobs = model.logprobs(token, caches, start + step)[:, -1]
    return torch.cat(tokens, 1).tolist(), torch.cat(chosen, 1).tolist()


def operation(case):
    rows, context, prompt = case["rows"], case["contextLength"], case["promptLength"]
    model = Transformer(case["vocabSize"], case["layers"], case["width"], case["heads"], context)
    tokens = torch.randint(0, case["vocabSize"], (rows, context))
    if case["operation"] == "generation":
        with_prompts = tokens[:, :prompt]
        return torch.inference_mode()(lambda: generate(model, with_prompts, context - prompt, context))
    if case["operation"] == "scoring":
        return torch.inference_mode()(lambda: model.chosen(tokens).tolist())
    old, advantages = torch.randn(rows, context - 1) * 0.1 - 2.7, torch.randn(rows, context - 1)

    def train():
        ratio = torch.exp(model.chosen(tokens) - old)
        (-torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages).sum()).backward()

    return train


def least_milliseconds(run, rounds):
    best = math.inf
    for _ in range(rounds):
        before = time.process_time()
        run()
        best = min(best, time.process_time() - before)
    return 1000 * best


torch.set_num_threads(1)
torch.manual_seed(0)
print(json.dumps([least_milliseconds(operation(case), case["rounds"]) for case in json.load(sys.stdin)]))
