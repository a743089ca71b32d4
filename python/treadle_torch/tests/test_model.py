"""What a folder or sizes may be, and what is said of those that may not."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file
from treadle_torch.adapters import AdapterOptions
from treadle_torch.errors import Refusal
from treadle_torch.model import ModelOptions, make_model
from transformers import Qwen3Config


class Refused(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refused(self, expected, path=None, width=8, heads=2, adapter=None):
        with self.assertRaisesRegex(Refusal, expected) as refused:
            make_model(ModelOptions(path and str(path), 7, 6, 2, width, heads, False, 1), torch.float32, adapter=adapter)
        self.assertEqual(refused.exception.code, "config.invalid")

    def test_a_folder_without_a_model_with_what_is_missing(self):
        self.refused("config.json", self.folder)
        (self.folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
        self.refused("safetensors", self.folder)

    def test_weights_that_are_cut_short_by_their_folder(self):
        (self.folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
        (self.folder / "model.safetensors").write_bytes(bytes([200, 0, 0, 0, 0, 0, 0, 0, 123]))
        self.refused(str(self.folder), self.folder)

    def test_a_folder_that_lacks_tensors_as_they_would_be_drawn_at_random(self):
        script = pathlib.Path(__file__).with_name("make_model.py")
        subprocess.run([sys.executable, script, self.folder, "[[1]]", "qwen3"], check=True, capture_output=True)
        path = self.folder / "qwen3" / "model.safetensors"
        kept = {name: tensor for name, tensor in load_file(path).items() if "layers.1.mlp" not in name}
        save_file(kept, path, metadata={"format": "pt"})
        self.refused(r"lacks '3' of the tensors .*layers\.1\.mlp", path.parent)

    def test_a_folder_without_weights_unless_they_are_drawn(self):
        config = Qwen3Config(vocab_size=7, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, head_dim=4)
        config.num_key_value_heads, config.tie_word_embeddings = 1, True
        config.save_pretrained(self.folder)
        self.refused(r"no weights in safetensors.*engine\.randomWeights", self.folder)
        (self.folder / "model.safetensors").write_bytes(b"read by nobody")
        drawn = [self.drawn(seed) for seed in (1, 1, 2)]
        names = [name for name, _ in drawn[0].named()]
        self.assertNotIn("lm_head.weight", names)
        first, again, other = (torch.cat([each.flatten() for _, each in model.named()]) for model in drawn)
        self.assertTrue(torch.equal(first, again))
        self.assertFalse(torch.equal(first, other))
        keys = dict(drawn[0].named())["model.layers.1.self_attn.k_proj.weight"]
        self.assertEqual(tuple(keys.shape), (4, 8))

    def drawn(self, seed):
        return make_model(ModelOptions(str(self.folder), 7, 6, 9, 64, 9, False, seed, random_weights=True), torch.float32)

    def test_heads_of_an_odd_size(self):
        self.refused("a head has '3' dimensions", width=6)

    def test_targets_of_an_adapter_that_the_model_does_not_have(self):
        allowed = r"engine\.lora\.targets names 'query', which this model does not have; it has 'down_proj'.*'q_proj'"
        self.refused(allowed, adapter=AdapterOptions(rank=3, alpha=5, targets=("q_proj", "query")))


if __name__ == "__main__":
    unittest.main()
