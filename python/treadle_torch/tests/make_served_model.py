"""Saves a Qwen3 of random weights with a tokenizer, of sizes that vLLM's kernels for processors take.

    make_served_model.py FOLDER VOCABULARY CONTEXT
"""

import sys

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

folder, vocabulary, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(5)
config = AutoConfig.for_model(
    "qwen3",
    vocab_size=vocabulary,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=context,
    initializer_range=0.2,
    tie_word_embeddings=False,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
characters = {chr(ord("0") + token): token for token in range(1, vocabulary)}
words = Tokenizer(models.WordLevel({"<unk>": 0, **characters}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
