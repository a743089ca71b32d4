"""The attention of every pass, in place of the model's own: a pass says what each token sees, and how that is computed.

A model calls `_attend` with the `view` that its pass was given. A model that does not hand it on is refused: it would let
tokens see those of other sequences.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from .errors import Refusal

NAME = "treadle"


class View(Protocol):
    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """`query` is `[rows, heads, tokens, size]`; answers `[rows, tokens, heads, size]`."""
        ...


class Packed:
    """Sequences one after another in one row. Each token sees those before it in its own sequence.

    A kernel for sequences of various lengths does this where there is one. Elsewhere attention alone takes the sequences as
    padded rows, all else the packed row: either way no product is wasted on a mask over the whole row.
    """

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        self._lengths = lengths
        self._longest = max(lengths)
        sizes = torch.tensor(lengths)
        ends = sizes.cumsum(0)
        starts = ends - sizes
        self.positions = (torch.arange(int(ends[-1])) - starts.repeat_interleave(sizes)).to(device)
        self._bounds = torch.nn.functional.pad(ends, (1, 0)).to(torch.int32).to(device)
        # Padding stands behind the last token of its row, which no token sees.
        columns = torch.arange(self._longest)
        self._padded = torch.where(columns < sizes[:, None], starts[:, None] + columns, 0).to(device)
        self._back = torch.nonzero((columns < sizes[:, None]).flatten())[:, 0].to(device)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        takes = query.is_cuda and query.dtype != torch.float32 and query.shape[-1] % 8 == 0
        if takes and varlen_works(query.device, query.dtype):
            rows = [each[0].transpose(0, 1) for each in (query, key, value)]
            return _varlen(*rows, self._bounds, self._longest, scale)[None]
        return self.attend_padded(query, key, value, scale)

    def attend_padded(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        if len(self._lengths) == 1:
            return _causal(query, key, value, scale).transpose(1, 2)
        padded = _causal(*(each[0][:, self._padded].transpose(0, 1) for each in (query, key, value)), scale)
        return padded.transpose(1, 2).flatten(0, 1)[self._back][None]


class Cached:
    """New tokens of several sequences see those in the cache; `bias` is `[rows, 1, tokens, keys]`: 0 or minus infinity."""

    def __init__(self, bias: torch.Tensor) -> None:
        self._bias = bias

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        rows, heads, tokens, size = query.shape
        groups = key.shape[1]
        if tokens > 1:
            return _biased(query, key, value, self._bias, scale, shares=heads != groups).transpose(1, 2)
        # Heads that share keys are taken for tokens of one head: nothing of the cache is copied.
        grouped = query.reshape(rows, groups, heads // groups, size)
        bias = self._bias.expand(-1, groups, heads // groups, -1)
        return _biased(grouped, key, value, bias, scale).reshape(rows, 1, heads, size)


def _biased(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scale: float | None, *, shares: bool = False
) -> torch.Tensor:
    """By kernels that take a bias of any strides, and make no plan for each length of the keys as cuDNN's does."""
    kernels = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]) if query.is_cuda else contextlib.nullcontext()
    with kernels:
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale, enable_gqa=shares)


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
    shares = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=shares)


@functools.cache
def varlen_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Tried rather than read from a version: whether the kernel is there and answers as plain attention does."""
    view = Packed([3, 17, 1], device)
    random = torch.Generator(device).manual_seed(1)
    draw = lambda heads: torch.randn(1, heads, 21, 64, device=device, generator=random).to(dtype)  # noqa: E731
    given = [draw(4), draw(2), draw(2)]
    slope = draw(4)[0].transpose(0, 1)
    ways = (
        lambda query, key, value: _varlen(*(each[0].transpose(0, 1) for each in (query, key, value)), view._bounds, 17, None),
        lambda query, key, value: view.attend_padded(query, key, value, None)[0],
    )
    answers = []
    with torch.enable_grad():
        for way in ways:
            leaves = [each.clone().requires_grad_() for each in given]
            try:
                answer = way(*leaves)
                answers.append([answer, *torch.autograd.grad(answer, leaves, slope)])
            except Exception:  # noqa: BLE001 it is not there, whatever it says
                return False
    return all(torch.allclose(*pair, rtol=5e-2, atol=5e-2) for pair in zip(*answers, strict=True))


@functools.cache
def _varlen_options() -> dict[str, Any]:
    """The names of its options are not those of all versions."""
    from torch.nn.attention.varlen import varlen_attn

    names = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in names else {"is_causal": True}
    return {**options, "enable_gqa": True} if "enable_gqa" in names else options


def _varlen(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: torch.Tensor, longest: int, scale: float | None) -> torch.Tensor:
    """`[tokens, heads, size]`."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(query, key, value, bounds, bounds, longest, longest, scale=scale, **_varlen_options())


def leave_uncompiled() -> None:
    """Blocks are compiled around their attention, which depends on the pass."""
    AttentionInterface.register(NAME, torch.compiler.disable(_attend))


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    view: View | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    others = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if view is None or others:
        what = f"takes '{others[0]}'" if others else "does not say which tokens it is about"
        raise Refusal("config.invalid", f"the model's attention {what}, which is not supported; use another model")
    return view.attend(query, key, value, scaling), None


AttentionInterface.register(NAME, _attend)
