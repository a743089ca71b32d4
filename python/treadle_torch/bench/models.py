"""Sizes that are measured, and models of random weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from treadle_torch import attention
from treadle_torch.device import Placement
from treadle_torch.model import CausalModel, PassOptions

# Deviation of a token's logits: random weights alone would make almost equal ones, whose errors nobody sees.
LOGITS = 3.0


@dataclass(frozen=True)
class Sizes:
    """Of the model that most is measured with, of the larger ones, and of what they are given."""

    small: dict[str, int | bool]
    large: dict[str, int | bool]
    trained: dict[str, int | bool]
    context: int
    sequences: int
    prompt: int
    new_tokens: int
    large_sequences: int
    rows: int
    steps: int


def _qwen3(layers: int, width: int, inner: int, heads: int, groups: int, size: int, vocabulary: int, *, tied: bool) -> dict[str, int | bool]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": size,
        "tie_word_embeddings": tied,
    }


FULL = Sizes(
    small=_qwen3(24, 1024, 3072, 16, 8, 128, 151_936, tied=False),
    large=_qwen3(36, 4096, 12_288, 32, 8, 128, 151_936, tied=False),
    trained=_qwen3(27, 2560, 9728, 32, 8, 128, 151_936, tied=True),
    context=1280,
    sequences=64,
    prompt=128,
    new_tokens=256,
    large_sequences=32,
    rows=48,
    steps=2,
)
QUICK = Sizes(
    small=_qwen3(2, 32, 48, 4, 2, 8, 97, tied=False),
    large=_qwen3(2, 48, 64, 4, 2, 12, 97, tied=False),
    trained=_qwen3(2, 40, 48, 4, 2, 10, 97, tied=True),
    context=64,
    sequences=6,
    prompt=5,
    new_tokens=12,
    large_sequences=3,
    rows=6,
    steps=2,
)


def build(sizes: dict[str, int | bool], context: int, placement: Placement) -> torch.nn.Module:
    """Made where it is used, in the numbers that it is used in; sampled from, it is neither sure nor without a choice."""
    config = Qwen3Config(**sizes, max_position_embeddings=context, pad_token_id=None, bos_token_id=None, eos_token_id=None)
    torch.manual_seed(11)
    with torch.device(placement.device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME, dtype=placement.dtype)
        width = int(sizes["hidden_size"])
        with torch.no_grad():
            model.get_output_embeddings().weight.normal_(std=LOGITS / width**0.5)
    return model


def causal(sizes: dict[str, int | bool], context: int, placement: Placement, *, checkpoints: bool = False) -> CausalModel:
    return CausalModel(build(sizes, context, placement), context, passes=PassOptions(checkpoints=checkpoints))


def count(model: torch.nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def random_prompts(sizes: Sizes, number: int, seed: int) -> list[tuple[int, list[int]]]:
    """Keys and tokens, of lengths around the prompt's."""
    draw = torch.Generator().manual_seed(seed)
    vocabulary = int(sizes.small["vocab_size"])
    lengths = torch.randint(max(1, sizes.prompt // 2), sizes.prompt + 1, (number,), generator=draw).tolist()
    return [(key, torch.randint(vocabulary, (length,), generator=draw).tolist()) for key, length in enumerate(lengths)]


def random_rows(sizes: Sizes, seed: int) -> dict[str, torch.Tensor]:
    """A batch for a policy gradient: rows of lengths from a quarter to four quarters of the context, all but prompts trained."""
    draw = torch.Generator().manual_seed(seed)
    columns = sizes.context * 3 // 4
    shape = (sizes.rows, columns)
    lengths = torch.randint(columns // 4, columns + 1, (sizes.rows, 1), generator=draw)
    places = torch.arange(columns)
    return {
        "tokens": torch.randint(int(sizes.small["vocab_size"]), shape, generator=draw, dtype=torch.int32),
        "weights": ((places >= 4) & (places < lengths)).float(),
        "advantages": torch.randn(shape, generator=draw),
        "oldLogprobs": torch.full(shape, -8.0),
    }


def num_tokens(batch: dict[str, torch.Tensor]) -> int:
    """That the trainer reads: rows up to their last weight."""
    columns = torch.arange(batch["weights"].shape[1])
    return int(torch.where(batch["weights"] != 0, columns, 0).amax(1).sum())
