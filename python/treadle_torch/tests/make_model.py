"""Saves a small causal model of random weights as Hugging Face does, and prints what it says of some rows.

    make_model.py FOLDER FAMILY ROWS    ROWS is JSON: lists of token ids of equal length
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

folder, family, rows = sys.argv[1], sys.argv[2], torch.tensor(json.loads(sys.argv[3]))
torch.manual_seed(5)
torch.set_num_threads(1)
sizes = {
    "vocab_size": 7,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 6,
    "initializer_range": 0.5,
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
if family == "qwen3":
    sizes["head_dim"] = 4
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes), dtype=torch.float32).eval()
model.save_pretrained(folder)
with torch.no_grad():
    logprobs = model(input_ids=rows).logits.log_softmax(-1)
chosen = logprobs[:, :-1].gather(-1, rows[:, 1:, None])[..., 0]
print(json.dumps([[0.0, *row] for row in chosen.tolist()]))
