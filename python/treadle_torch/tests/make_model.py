"""Saves small causal models of random weights as Hugging Face does, and prints a line for each: what it says of some rows.

    make_model.py FOLDER ROWS FAMILY...    ROWS is JSON: lists of token ids of equal length

Each is in FOLDER/FAMILY. FOLDER/FAMILY-untied has another output embedding, which its config.json does not say.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

folder, rows, *families = sys.argv[1:]
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
given = torch.tensor(json.loads(rows))
for family in families:
    torch.manual_seed(5)
    own = {**sizes, "head_dim": 4} if family == "qwen3" else sizes
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **own), dtype=torch.float32).eval()
    path = pathlib.Path(folder, family)
    model.save_pretrained(path)
    untied = shutil.copytree(path, f"{path}-untied")
    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, f"{untied}/model.safetensors", {"format": "pt"})
    with torch.no_grad():
        logprobs = model(input_ids=given).logits.log_softmax(-1)
    chosen = logprobs[:, :-1].gather(-1, given[:, 1:, None])[..., 0]
    print(json.dumps([[0.0, *row] for row in chosen.tolist()]))
