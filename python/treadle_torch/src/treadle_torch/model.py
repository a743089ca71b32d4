"""A causal Hugging Face model, of a folder or with random weights, and the calls that engines make of it."""

from __future__ import annotations

import contextlib
import pathlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, Qwen3Config

from . import attention
from .adapters import Adapted, AdapterOptions, adapt, config_of, is_of_adapter
from .attention import Packed, View
from .errors import Refusal
from .logprobs import chosen_logprobs

# As the embedded engine names it.
VALUE_HEAD = "value.projection"


@dataclass(frozen=True)
class ModelOptions:
    """
    `path` is a Hugging Face folder, of which only `config.json` is read where weights are random; without one, a Qwen3 of these
    sizes with random weights.
    """

    path: str | None
    vocab_size: int
    context_length: int
    layers: int
    width: int
    heads: int
    value_head: bool
    seed: int
    random_weights: bool = False


@dataclass(frozen=True)
class PassOptions:
    """How passes that have a gradient are made: activations made again in the backward pass; blocks compiled."""

    checkpoints: bool = False
    compiles: bool = False


def make_model(
    options: ModelOptions,
    dtype: torch.dtype,
    passes: PassOptions | None = None,
    *,
    adapter: AdapterOptions | None = None,
    is_shell: bool = False,
) -> CausalModel:
    """On the host. Random weights are the same for every precision, up to its rounding. A shell has no memory for them."""
    torch.manual_seed(options.seed)
    with torch.device("meta") if is_shell else contextlib.nullcontext():
        inner = _made(options, dtype, is_shell=is_shell)
    if options.vocab_size > inner.config.vocab_size:
        raise _config(
            f"the model has a vocabulary of '{inner.config.vocab_size}' where model.vocabSize is '{options.vocab_size}'"
        )
    for parameter in inner.parameters():
        # Buffers stay: what rotates positions is not exact in fewer bits.
        parameter.data = parameter.data.to(dtype)
    if adapter is not None:
        adapt(inner, adapter, options.seed)
    model = CausalModel(inner, options.context_length, value_head=options.value_head, passes=passes)
    if adapter is not None:
        model.adapter_config = config_of(adapter, None if options.random_weights else options.path)
        model.adapter_rank = adapter.rank
    return model


class CausalModel(nn.Module):
    """Log-probabilities and, with a value head, values. Without dropout."""

    def __init__(
        self, inner: nn.Module, context_length: int, *, value_head: bool = False, passes: PassOptions | None = None
    ) -> None:
        super().__init__()
        self.inner = inner.eval()
        config = inner.config
        self.vocab_size = config.vocab_size
        self.adapter_config = b""
        self.adapter_rank = 0
        self.scale = next((each.scale for each in inner.modules() if isinstance(each, Adapted)), 1.0)
        self.context_length = context_length
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and context_length > most:
            raise _config(f"the model reads '{most}' tokens where model.contextLength is '{context_length}'")
        _refuse_other_attention(config, context_length)
        self._body = inner.base_model
        head = inner.get_output_embeddings()
        if not head.weight.is_meta:
            self._refuse_other_head(head)
        self._head = head.weight
        self.value = nn.Linear(config.hidden_size, 1, bias=False, device=self._head.device) if value_head else None
        if self.value is not None:
            # An untrained critic knows nothing, and its noise would be taken for advantages.
            nn.init.zeros_(self.value.weight)
        for block in self._body.layers if passes else []:
            _wrap(block, passes)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Tied ones once, in a fixed order."""
        own = list(self.inner.named_parameters())
        return own if self.value is None else [*own, (VALUE_HEAD, self.value.weight)]

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, each) for name, each in self.named() if each.requires_grad]

    def frozen(self) -> list[tuple[str, nn.Parameter]]:
        """What is below an adapter; nothing where there is none."""
        return [(name, each) for name, each in self.named() if not each.requires_grad]

    def weights(self) -> list[tuple[str, torch.Size]]:
        """What others get of it (LA2)."""
        return [(name, each.shape) for name, each in self.named() if not is_of_adapter(name)]

    def units(self) -> list[nn.Module]:
        """Parts that hold parameters of their own. What is left belongs to the model: embeddings and the last norm."""
        return [*self._body.layers, *([] if self.value is None else [self.value])]

    def forward(
        self,
        view: Packed,
        given: torch.Tensor,
        places: torch.Tensor,
        tokens: torch.Tensor,
        temperatures: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Of one packed row `given` and tokens that are predicted at `places` of it: log-probabilities, entropies, values."""
        hidden = self.body(given[None], view.positions[None], view)[0][places]
        values = self.values(hidden)
        # A view that somebody changes in place would leave a sharded model without its gradient.
        return *self.scores(hidden, tokens, temperatures), None if values is None else values.clone()

    def body(self, tokens: torch.Tensor, positions: torch.Tensor, view: View, cache: object = None) -> torch.Tensor:
        """`[rows, columns, width]`: what the model makes of each token, of those that the view shows to it."""
        return self._body(
            input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=cache is not None, view=view
        ).last_hidden_state

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._head.T

    def scores(
        self, hidden: torch.Tensor, tokens: torch.Tensor, temperatures: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the tokens and entropies of what they are drawn from; all `[tokens]`."""
        return chosen_logprobs(hidden, self._head, tokens, temperatures)

    def values(self, hidden: torch.Tensor) -> torch.Tensor | None:
        return None if self.value is None else self.value(hidden.float())[..., 0]

    def _refuse_other_head(self, head: nn.Module) -> None:
        """What is computed by chunks is the product with the output embedding; tried, because families scale or bound it."""
        seen: list[torch.Tensor] = []
        hooks = [
            self._body.register_forward_hook(lambda _, given, made: seen.append(made.last_hidden_state)),
            head.register_forward_hook(lambda _, given, made: seen.extend((given[0], made))),
        ]
        tokens = torch.tensor([[1, 0]], device=head.weight.device)
        view = Packed([2], tokens.device)
        with torch.no_grad():
            logits = self.inner(input_ids=tokens, position_ids=view.positions[None], use_cache=False, view=view).logits
        for hook in hooks:
            hook.remove()
        hidden, given, made = seen
        is_product = isinstance(head, nn.Linear) and head.bias is None
        if not is_product or not torch.equal(given, hidden) or not torch.equal(logits, made.to(logits.dtype)):
            raise _config("the model's logits are not the product of its output embedding, which is what is supported")


def _wrap(block: nn.Module, passes: PassOptions) -> None:
    plain = block.forward
    if passes.compiles:
        attention.leave_uncompiled()
    trained = torch.compile(plain, dynamic=True) if passes.compiles else plain

    def forward(*args: object, **options: object) -> object:
        if not torch.is_grad_enabled():
            return plain(*args, **options)
        if not passes.checkpoints:
            return trained(*args, **options)
        return checkpoint(trained, *args, use_reentrant=False, preserve_rng_state=False, **options)

    block.forward = forward


def _made(options: ModelOptions, dtype: torch.dtype, *, is_shell: bool) -> nn.Module:
    path = options.path
    if path is None:
        return _drawn(_qwen3(options), torch.float32)
    folder = pathlib.Path(path)
    if not (folder / "config.json").is_file():
        raise _config(f"engine.path '{path}' has no config.json; give the folder of a Hugging Face model")
    if not options.random_weights and not any(folder.glob("*.safetensors")):
        raise _config(
            f"engine.path '{path}' has no weights in safetensors; other formats are not read: give a folder that has them, "
            "or draw weights at random with engine.randomWeights"
        )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        if options.random_weights:
            return _drawn(config, torch.float32)
        return _drawn(config, dtype) if is_shell else _read(path, config, dtype)
    except Refusal:
        raise
    except Exception as error:
        raise _config(f"the model in engine.path '{path}' cannot be read: {error}") from error


def _drawn(config: PretrainedConfig, dtype: torch.dtype) -> nn.Module:
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME, dtype=dtype)


def _read(path: str, config: PretrainedConfig, dtype: torch.dtype) -> nn.Module:
    model, info = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=dtype,
        attn_implementation=attention.NAME,
        output_loading_info=True,
    )
    # They would be drawn at random.
    missing = sorted(info["missing_keys"])
    if missing:
        raise _config(
            f"the model in engine.path '{path}' lacks '{len(missing)}' of the tensors that its config.json asks for, as '{missing[0]}'; give a folder that has all of them"
        )
    return model


def _qwen3(options: ModelOptions) -> Qwen3Config:
    head = options.width // options.heads
    if head % 2 == 1:
        raise _config(f"a head has '{head}' dimensions, model.width over model.heads, and needs an even number of them")
    return Qwen3Config(
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


