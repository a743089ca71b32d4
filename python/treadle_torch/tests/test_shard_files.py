"""Checkpoints of which every process writes and reads its own part, over gloo."""

import hashlib
import itertools
import json
import math
import os
import pathlib
import random
import shutil
import struct
import tempfile
import tracemalloc
import types
import unittest

import torch
from safetensors.torch import load_file
from shard_peers import Peers
from treadle_torch.errors import Refusal
from treadle_torch.shard_files import FORMAT, KINDS, Facts, Shard, read_shards
from treadle_torch.sharding import Shards

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
        """SD3."""
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


class HostileHeaders(unittest.TestCase):
    """SHC4: a file of any content is refused, in little memory. What else is thrown would end a follower."""

    LAYOUT = (("w", (3, 2)), ("v", (2,)))

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "part")
        self.random = random.Random(SEED)
        self.addCleanup(print, f"TREADLE_SEED={SEED}")
        # What is read of parameters, without an engine.
        self.parameters = types.SimpleNamespace(layout=self.LAYOUT, shards=Shards(0, 1))

    def written(self, **altered: object) -> list[str]:
        """One that is whole, of facts of which some are others."""
        layout = [{"name": name, "shape": list(shape)} for name, shape in self.LAYOUT]
        said = {"save": "s", "policy_version": 1, "steps": 1, "ranks": 1, "layout": layout, "base": None, "below": None, **altered}
        parts = [torch.ones(shape) for _ in KINDS for _, shape in self.LAYOUT]
        Shard(Facts(**said), 0, parts).write_to(self.path)
        return [self.path]

    def test_what_no_engine_saves_is_refused_and_what_was_written_is_known_by_its_checksum(self):
        """SHC1, SHC4."""
        facts = Facts("s", 1, 1, 1, [{"name": name, "shape": list(shape)} for name, shape in self.LAYOUT], None, None)
        names = [f"{kind}/{name}" for kind in KINDS for name, _ in self.LAYOUT]
        for at, name in enumerate(names):
            for value in (math.nan, math.inf, -1.0):
                with self.subTest(name=name, value=value):
                    parts = [torch.ones(shape) for _ in KINDS for _, shape in self.LAYOUT]
                    parts[at].view(-1)[self.random.randrange(parts[at].numel())] = value
                    written = Shard(facts, 0, parts).write_to(self.path)
                    self.assertEqual(written.sha256, hashlib.sha256(pathlib.Path(self.path).read_bytes()).hexdigest())
                    if value == -1.0 and not name.startswith(KINDS[2]):
                        read_shards([self.path], self.parameters, None)
                    else:
                        with self.assertRaises(Refusal) as refused:
                            read_shards([self.path], self.parameters, None)
                        self.assertIn(name, str(refused.exception))

    def with_header(self, header: bytes, body: bytes = b"") -> list[str]:
        pathlib.Path(self.path).write_bytes(struct.pack("<Q", len(header)) + header + body)
        return [self.path]

    def refused(self, paths: list[str]) -> str:
        tracemalloc.start()
        try:
            with self.assertRaises(Refusal) as raised:
                read_shards(paths, self.parameters, None)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertEqual(raised.exception.code, "checkpoint.corrupt")
        self.assertLess(peak, 32 * 2**20)
        str(raised.exception).encode()  # as it is told
        return str(raised.exception)

    def test_values_that_no_process_writes_are_refused_wherever_they_stand(self):
        self.assertEqual(read_shards(self.written(), self.parameters, None).steps, 1)
        whole = pathlib.Path(self.path).read_bytes()
        (length,) = struct.unpack_from("<Q", whole)
        header, body = json.loads(whole[8 : 8 + length]), whole[8 + length :]
        said = header["__metadata__"]
        shape = self.random.choice([2**self.random.randrange(48, 4000), -1, 1.5, 1e308, True, None, "3", float("inf"), float("nan"), []])
        deep = "[" * self.random.randrange(100, 200_000)
        nested = "[" * (depth := self.random.randrange(2, 900)) + "]" * depth
        hostile = [
            *(deep, nested, "9" * self.random.randrange(17, 6000), "Infinity", "NaN", "-1", "1.5", "true", "{}", "", "\ud800"),
            *('"\\ud800"', float("inf"), float("-inf"), float("nan"), 2**70, 1e308, None, [], {}, json.loads(nested)),
            *(json.dumps([{"name": "w", "shape": sizes}]) for sizes in ([shape, 2], [3, shape], [2**20] * 100_000, shape)),
            *(json.dumps([{"name": name, "shape": [3, 2]}]) for name in ("\ud800", [], None)),
            *(json.dumps([each]) for each in (None, "w", {}, {"name": "w", "shape": [3, 2], "more": [1]})),
            *(json.dumps(["f" * self.random.randrange(9, 10_000)] * 6), json.dumps(["-0000001"] * 6)),
        ]
        for field in said:
            for value in (*hostile, *([said[field][:-1]])):
                with self.subTest(field=field, value=repr(value)[:60], seed=SEED):
                    text = json.dumps({**header, "__metadata__": {**said, field: value}}, separators=(",", ":")).encode()
                    self.refused(self.with_header(text + b" " * (-len(text) % 8), body))

    def test_a_whole_file_of_facts_of_other_kinds_is_refused(self):
        odd = [[], {}, ["a", 1], 5, True, json.loads("[" * 400 + "]" * 400), "\ud800"]
        for field in ("save", "base", "below"):
            for value in odd:
                with self.subTest(field=field, value=repr(value)[:40]):
                    self.refused(self.written(**{field: value}))

    def test_headers_that_nest_or_are_no_text_are_refused(self):
        for text in (b'{"__metadata__":' + b"[" * self.random.randrange(1, 300_000), b'{"__metadata__":"\xff\xfe"}', b"[" * 200_000, b"1", b"null"):
            with self.subTest(text[:30], seed=SEED):
                self.refused(self.with_header(text))

    def test_files_are_counted_before_anything_is_made_of_how_many_there_should_be(self):
        """SHC2."""
        ranks = self.random.randrange(2**21, 2**22)
        header = self._header_of_one_of(ranks)
        self.assertRegex(self.refused(header), f"was saved by '{ranks}' processes")

    def _header_of_one_of(self, ranks: int) -> list[str]:
        layout = [{"name": name, "shape": list(shape)} for name, shape in self.LAYOUT]
        parts = [torch.ones((1, *shape[1:])) for _ in KINDS for _, shape in self.LAYOUT]
        Shard(Facts("s", 1, 1, ranks, layout, None, None), 0, parts).write_to(self.path)
        return [self.path]


if __name__ == "__main__":
    unittest.main()
