"""Checkpoints of which every process writes and reads its own part, over gloo."""

import itertools
import json
import os
import pathlib
import random
import shutil
import struct
import tempfile
import unittest

from safetensors.torch import load_file
from shard_peers import Peers

SEED = int(os.environ.get("TREADLE_SEED") or random.randrange(2**31))


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"TREADLE_SEED={SEED}", flush=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.random = random.Random(SEED)

    def peers(self, size: int, kind: str = "values") -> Peers:
        peers = Peers(size, kind)
        self.addCleanup(peers.close)
        return peers

    def loaded(self, size: int, kind: str = "values") -> Peers:
        peers = self.peers(size, kind)
        peers.all("restore")
        return peers

    def refused(self, peers: Peers, paths: list[str]) -> str:
        """Alike in all processes, which keep what they have."""
        before = peers.first("state")
        answers = peers.all("load", paths)
        self.assertEqual(len(set(answers)), 1, answers)
        code, message = answers[0]
        self.assertEqual(code, "checkpoint.corrupt")
        self.assertEqual(peers.first("state"), before)
        return message


class Resharding(Files):
    def test_any_number_of_processes_goes_on_from_what_any_number_has_saved(self):
        """SHC1, SHC3: weights and moments are the same bit for bit, and so is what is saved again."""
        sizes = range(1, 5)
        engines = {size: self.loaded(size) for size in sizes}
        for saver in sizes:
            engines[saver].first("train", self.random.randint(1, 2))
            expected = engines[saver].first("state")
            paths = engines[saver].save(self.folder, f"save-{saver}", f"of-{saver}")
            version = engines[saver].first("train", 1)  # what is copied does not change
            self.assertNotEqual(engines[saver].first("state"), expected)
            for reader in sizes:
                with self.subTest(saver=saver, reader=reader):
                    self.random.shuffle(paths)
                    self.assertEqual(engines[reader].all("load", paths), [version - 1] * reader)
                    self.assertEqual(engines[reader].first("state"), expected)
        # A reader trains on as the saver would have.
        for one, other in itertools.pairwise(sizes):
            self.assertEqual(engines[one].first("state"), engines[other].first("state"))

    def test_adapters_and_what_is_computed_in_fewer_bits_are_resharded_too(self):
        for kind, saver, reader in (("lora", 2, 3), ("values/bfloat16", 3, 2), ("lora/bfloat16", 4, 1)):
            with self.subTest(kind):
                one, other = self.loaded(saver, kind), self.loaded(reader, kind)
                one.first("train", 2)
                self.assertEqual(other.all("load", one.save(self.folder, kind.replace("/", "-"))), [2] * reader)
                self.assertEqual(other.first("state"), one.first("state"))
                one.close()
                other.close()

    def test_one_that_is_not_loaded_yet_saves_the_parts_of_all(self):
        """SH3."""
        fresh = self.peers(3)
        paths = [os.path.join(self.folder, f"part-{rank}") for rank in range(3)]
        expected = fresh.only_first("state")
        fresh.only_first("save", "fresh", None)
        fresh.only_first("write", "fresh", paths)
        two = self.loaded(2)
        two.first("train", 1)
        self.assertEqual(two.all("load", paths), [0, 0])
        self.assertEqual(two.first("state"), expected)

    def test_other_programs_read_a_part_and_it_is_the_users_alone(self):
        two = self.loaded(2)
        two.first("train", 1)
        paths = two.save(self.folder, "save")
        parts = [load_file(path) for path in paths]
        self.assertEqual([sorted(each) for each in parts], [sorted(parts[0])] * 2)
        self.assertEqual({name.split("/")[0] for name in parts[0]}, {"weights", "first_moments", "second_moments"})
        embedding = next(name for name in parts[0] if name.startswith("weights/") and name.endswith("embed_tokens.weight"))
        self.assertEqual([len(each[embedding]) for each in parts], [12, 11])
        for path in paths:
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)


class BadFiles(Files):
    def setUp(self):
        super().setUp()
        self.three, self.two = self.loaded(3), self.loaded(2)
        self.three.first("train", 2)
        self.paths = self.three.save(self.folder, "save")
        self.two.first("train", 1)

    def test_what_is_missing_twice_there_or_of_another_save_is_named(self):
        """SHC2."""
        self.three.first("train", 1)
        later = self.three.save(self.folder, "later", "later")
        of_two = self.two.save(self.folder, "other", "two")
        one, two, three = self.paths
        for paths, said in (
            ([], "it has no files"),
            ([one, three], "saved by '3' processes, and the files are those of '0, 2': that of process '1' is missing"),
            ([one, two, three, two], "those of '0, 1, 1, 2': one of them is there twice"),
            ([one, later[1], three], "is of policy version '2' and save 'save', .*later-1' of '3' and 'later'"),
            ([one, of_two[1], three], "part-0' is one of '3' files and .*two-1' one of '2'"),
            ([one, two, os.path.join(self.folder, "nowhere")], "nowhere' cannot be read: No such file"),
        ):
            with self.subTest(said):
                self.assertRegex(self.refused(self.two, paths), f"{said}.*; use an earlier one")
        self.assertEqual(self.two.all("load", self.paths), [2, 2])

    def test_another_model_adapter_or_scale_is_refused(self):
        wider, plain, lora, alpha = (self.loaded(size, kind) for size, kind in ((2, "wider"), (1, "plain"), (2, "lora"), (2, "lora-alpha")))
        self.assertRegex(self.refused(wider, self.paths), r"embed_tokens.weight' is '\[23, 32\]' there and '\[29, 32\]' in this model")
        self.assertRegex(self.refused(plain, self.paths), "is '.*' there and 'absent' in this model")
        self.assertRegex(self.refused(lora, self.paths), "is 'absent' there|there and 'absent' in this model")
        saved = lora.save(self.folder, "lora", "lora")
        self.assertRegex(self.refused(alpha, saved), "over the weights '[0-9a-f]{8}' where the adapter of this engine is over '[0-9a-f]{8}'; set engine.path")

    def test_a_file_that_is_cut_altered_or_none_is_named_with_its_tensor(self):
        """SHC4: one process's rows are refused by all."""
        at = self.random.randrange(3)
        path = pathlib.Path(self.paths[at])
        whole = path.read_bytes()
        (length,) = struct.unpack_from("<Q", whole)
        start = 8 + length
        header = json.loads(whole[8:start])

        def altered(offset: int, value: int | None = None) -> bytes:
            data = bytearray(whole)
            data[offset] = data[offset] ^ (1 << self.random.randrange(8)) if value is None else value
            return bytes(data)

        metadata = {**header["__metadata__"], "steps": "9"}
        text = json.dumps({**header, "__metadata__": metadata}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        link = f"{path}-link"
        os.symlink(path, link)
        cases = {
            "altered": (altered(self.random.randrange(start, len(whole))), "has checksum '[0-9a-f]{8}' where '[0-9a-f]{8}' was written"),
            "cut": (whole[: self.random.randrange(start, len(whole))], f"bytes where its header tells of '{len(whole)}'"),
            "longer": (whole + b"0", f"has '{len(whole) + 1}' bytes where"),
            "cut header": (whole[: self.random.randrange(8, start)], "ends in its header"),
            "empty": (b"", "ends in its header or has none"),
            "huge header": (struct.pack("<Q", 2**62) + whole[8:], "ends in its header"),
            "no header": (struct.pack("<Q", 8) + bytes(100), "cannot be read"),
            "other metadata": (struct.pack("<Q", len(text)) + text + whole[start:], "of policy version|and save"),
            "pickle": (b"\x80\x04\x95" + bytes(100), "ends in its header|cannot be read"),
        }
        for name, (data, said) in cases.items():
            with self.subTest(name):
                shutil.copy(path, f"{path}-kept")
                path.write_bytes(data)
                message = self.refused(self.two, self.paths)
                self.assertRegex(message, said)
                os.replace(f"{path}-kept", path)
        linked = [*self.paths[:at], link, *self.paths[at + 1 :]]
        self.assertRegex(self.refused(self.two, linked), "cannot be read")
        self.assertEqual(self.two.all("load", self.paths), [2, 2])


if __name__ == "__main__":
    unittest.main()
