"""(b) Tokens a second of generation, and (c) of training: served, driven directly, and by plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from treadle_torch import attention
from treadle_torch.device import Placement
from treadle_torch.engine import PASS_TOKENS, Engine
from treadle_torch.model import CausalModel
from treadle_torch.optimiser import Step
from treadle_torch.packing import Pass, pack

from .clock import seconds
from .correctness import POLICY
from .direct import generate
from .models import Sizes, build, causal, num_tokens, random_prompts, random_rows
from .served import Served

STEP = Step(1e-6, 1e-4, 1.0, 0.9, 0.95, 1e-8, 0.01)
ROUNDS = 5


def generation_speed(sizes: Sizes, placement: Placement, served: Served) -> Iterator[dict[str, Any]]:
    model = causal(sizes.small, sizes.context, placement)
    draw = random_prompts(sizes, sizes.sequences, 21)
    prompts = [(key, (tokens * sizes.prompt)[: sizes.prompt]) for key, tokens in draw]
    total = sizes.sequences * sizes.new_tokens
    shape = {"sequences": sizes.sequences, "prompt": sizes.prompt, "new_tokens": sizes.new_tokens}
    rates: dict[str, float] = {}
    engines: list[Engine] = []
    ways: dict[str, Callable[[], object]] = {"served": lambda: served.generate(prompts, sizes.new_tokens, 9)}
    for name, uses_graphs in (("direct", True), ("direct without graphs", False)):
        engine = Engine(model, sizes.sequences, placement, uses_graphs=uses_graphs)
        engines.append(engine)
        ways[name] = lambda e=engine: generate(e, prompts, sizes.new_tokens, 9)
    ways["Hugging Face generate"] = lambda: _hugging_face(model, prompts, sizes.new_tokens, placement)
    for name, act in ways.items():
        act()  # kernels are chosen and graphs recorded
        rates[name] = total / seconds(act, 1 if name.startswith("Hugging") else 2)
        yield {"what": f"generation, {name}", **shape, "tokens_per_second": rates[name]}
    for engine in engines:
        engine.close()
    yield {
        "what": "generation, ratios",
        "served_over_direct": rates["served"] / rates["direct"],
        "direct_over_hugging_face": rates["direct"] / rates["Hugging Face generate"],
    }


@torch.no_grad()
def _hugging_face(model: CausalModel, prompts: list[tuple[int, list[int]]], new_tokens: int, placement: Placement) -> None:
    inner: Any = model.inner
    inner.set_attn_implementation("sdpa")
    try:
        tokens = torch.tensor([tokens for _, tokens in prompts], device=placement.device)
        options = {"do_sample": True, "top_k": 0, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens}
        made = inner.generate(tokens, attention_mask=torch.ones_like(tokens), pad_token_id=0, **options)
        assert made.shape[1] == tokens.shape[1] + new_tokens
    finally:
        inner.set_attn_implementation(attention.NAME)


def training_speed(sizes: Sizes, placement: Placement, served: Served) -> Iterator[dict[str, Any]]:
    """The ways take turns, a few steps each, so that what changes from minute to minute is in all of them alike."""
    batch = random_rows(sizes, 31)
    tokens = num_tokens(batch)
    passes = pack(batch["tokens"], batch["weights"] != 0, PASS_TOKENS, placement.device)
    engine = Engine(causal(sizes.small, sizes.context, placement), 1, placement)
    numbers = {"copy": placement.dtype, "autocast": torch.float32}
    plain = {
        f"plain, {how}": Plain(build(sizes.small, sizes.context, Placement(placement.device, dtype)), is_autocast=how == "autocast")
        for how, dtype in numbers.items()
    }
    ways: dict[str, Callable[[], object]] = {
        "served": lambda: (served.forward_backward(batch), served.optim_step(1e-4)),
        "direct": lambda: engine.submit(lambda: (engine.forward_backward(batch, POLICY), engine.optim_step(STEP))).result(),
        **{name: lambda loop=loop: loop.step(batch, passes) for name, loop in plain.items()},
    }
    for act in ways.values():
        act()  # memory is taken, kernels are chosen
    rounds = [{name: seconds(lambda a=act: [a() for _ in range(sizes.steps)]) / sizes.steps for name, act in ways.items()} for _ in range(ROUNDS)]
    shape = {"rows": sizes.rows, "tokens": tokens, "tokens_of_a_pass": PASS_TOKENS, "rounds": ROUNDS}
    steps = {name: median([each[name] for each in rounds]) for name in ways}
    for name, step in steps.items():
        yield {"what": f"training, {name}", **shape, "seconds_of_a_step": step, "tokens_per_second": tokens / step}
    # Nothing has weight: what remains is the call.
    empty = {name: torch.zeros_like(each) if name == "weights" else each for name, each in batch.items()}
    call = seconds(lambda: served.forward_backward(empty), 5)
    yield {"what": "training, gRPC", "seconds": call, "bytes": sum(4 * each.numel() for each in batch.values()), "share_of_a_step": call / steps["served"]}
    ratios = {
        f"{name}_over_plain": [min(each[loop] for loop in plain) / each[name] for each in rounds] for name in ("served", "direct")
    }
    yield {
        "what": "training, ratios",
        **{name: median(each) for name, each in ratios.items()},
        **{f"{name}_from_to": [min(each), max(each)] for name, each in ratios.items()},
        "target_served_over_plain": 0.97,
    }
    engine.close()


class Plain:
    """A training loop as one writes it: Hugging Face's forward, log-softmax, `torch.optim.AdamW`.

    With autocast, parameters are in float32, and the row is packed by positions that begin again, for which Hugging Face
    makes a mask of blocks. Without, attention is the engine's, the model computes and gets its gradients in its own numbers,
    and, where those are not float32, a copy in float32 is stepped.
    """

    def __init__(self, model: torch.nn.Module, *, is_autocast: bool = False, has_own_attention: bool = False) -> None:
        self._model: Any = model
        if is_autocast or has_own_attention:
            self._model.set_attn_implementation("sdpa")
        self._is_autocast = is_autocast
        parameters = list(self._model.parameters())
        self._device = parameters[0].device
        self._is_copied = parameters[0].dtype != torch.float32
        self._masters = [each.detach().float().requires_grad_() for each in parameters] if self._is_copied else parameters
        self._optimiser = torch.optim.AdamW(self._masters, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.01, fused=True)

    def step(self, batch: dict[str, torch.Tensor], passes: list[Pass]) -> None:
        for one in passes:
            targets = batch["tokens"][one.rows, one.columns].long().to(self._device)
            slopes = (batch["weights"] * batch["advantages"])[one.rows, one.columns].to(self._device)
            view = {} if self._is_autocast else {"view": one.view}
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._is_autocast):
                logits = self._model(one.tokens[None], position_ids=one.view.positions[None], use_cache=False, **view).logits[0]
            self._backward(logits[one.places], targets, slopes)
        self._step()

    def step_padded(self, batch: dict[str, torch.Tensor]) -> None:
        """As most loops have it, of a model with attention of its own: rows of one length, whatever each has."""
        tokens = batch["tokens"].long().to(self._device)
        slopes = (batch["weights"] * batch["advantages"]).to(self._device)
        logits = self._model(tokens[:, :-1], use_cache=False).logits
        self._backward(logits.flatten(0, 1), tokens[:, 1:].flatten(), slopes[:, 1:].flatten())
        self._step()

    def _backward(self, logits: torch.Tensor, targets: torch.Tensor, slopes: torch.Tensor) -> None:
        losses = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
        (losses * slopes).sum().mul(1e-4).backward()

    def _step(self) -> None:
        if self._is_copied:
            for master, each in zip(self._masters, self._model.parameters(), strict=True):
                master.grad, each.grad = each.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self._masters, 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad()
        if self._is_copied:
            with torch.no_grad():
                torch._foreach_copy_(list(self._model.parameters()), self._masters)
