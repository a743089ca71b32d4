"""A causal Hugging Face model, of a folder or with random weights, and the calls that engines make of it."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

from .errors import Refusal

# As the embedded engine names it.
VALUE_HEAD = "value.projection"


@dataclass(frozen=True)
class ModelOptions:
    """`path` is a Hugging Face folder; without one, a Qwen3 of these sizes with random weights."""

    path: str | None
    vocab_size: int
    context_length: int
    layers: int
    width: int
    heads: int
    value_head: bool
    seed: int


class CausalModel(nn.Module):
    """Log-probabilities and, with a value head, values. In float32, without dropout."""

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        torch.manual_seed(options.seed)
        self.inner = _load(options.path) if options.path else _random(options)
        self.inner.eval()
        config = self.inner.config
        self.vocab_size = config.vocab_size
        self.context_length = options.context_length
        if options.vocab_size > self.vocab_size:
            raise _config(f"the model has a vocabulary of '{self.vocab_size}' where model.vocabSize is '{options.vocab_size}'")
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and options.context_length > most:
            raise _config(f"the model reads '{most}' tokens where model.contextLength is '{options.context_length}'")
        _refuse_other_attention(config, options.context_length)
        self.value = nn.Linear(config.hidden_size, 1, bias=False) if options.value_head else None
        if self.value is not None:
            # An untrained critic knows nothing, and its noise would be taken for advantages.
            nn.init.zeros_(self.value.weight)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Tied ones once, in a fixed order."""
        own = list(self.inner.named_parameters())
        return own if self.value is None else [*own, (VALUE_HEAD, self.value.weight)]

    def predict(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits `[rows, columns, vocabulary]` and values `[rows, columns]` of what follows each token.

        Rows are padded at their end alone, where a causal model shows it to no other token.
        """
        wants_values = self.value is not None
        out = self.inner(input_ids=tokens, use_cache=False, output_hidden_states=wants_values)
        return out.logits, self.value(out.hidden_states[-1])[..., 0] if wants_values else None

    def read(self, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, cache: object) -> torch.Tensor:
        """Logits of what follows each token; `visible` is `[rows, 1, columns, keys]`."""
        return self.inner(
            input_ids=tokens, position_ids=positions, attention_mask=visible, past_key_values=cache, use_cache=True
        ).logits


def _load(path: str) -> nn.Module:
    folder = pathlib.Path(path)
    if not (folder / "config.json").is_file():
        raise _config(f"engine.path '{path}' has no config.json; give the folder of a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        raise _config(f"engine.path '{path}' has no weights in safetensors; other formats are not read")
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        model, info = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    except Exception as error:
        raise _config(f"the model in engine.path '{path}' cannot be read: {error}") from error
    # They would be drawn at random.
    missing = sorted(info["missing_keys"])
    if missing:
        raise _config(
            f"the model in engine.path '{path}' lacks '{len(missing)}' of the tensors that its config.json asks for, as '{missing[0]}'; give a folder that has all of them"
        )
    return model


def _random(options: ModelOptions) -> nn.Module:
    head = options.width // options.heads
    if head % 2 == 1:
        raise _config(f"a head has '{head}' dimensions, model.width over model.heads, and needs an even number of them")
    config = Qwen3Config(
        vocab_size=options.vocab_size,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads,
        head_dim=head,
        max_position_embeddings=options.context_length,
        tie_word_embeddings=False,
        # matrices of any width begin as those of the embedded engine: deviation one over the square root of the inputs
        initializer_range=options.width**-0.5,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def _refuse_other_attention(config: object, context_length: int) -> None:
    """The cache's mask shows each token all before it; what sees less would be computed wrong, without a word."""
    types = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in types and window is not None and window >= context_length:
        types.discard("sliding_attention")
    is_windowed = getattr(config, "layer_types", None) is None and window is not None and window < context_length
    if types - {"full_attention"} or is_windowed:
        kinds = ", ".join(sorted(types - {"full_attention"})) or f"a window of {window}"
        raise _config(f"the model's attention is of a kind that is not supported: '{kinds}'; full attention is")
    if getattr(config, "is_encoder_decoder", False):
        raise _config("the model is an encoder with a decoder; decoders alone are supported")


def _config(message: str) -> Refusal:
    return Refusal("config.invalid", message)


