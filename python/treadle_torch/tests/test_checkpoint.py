"""Checkpoints that the process writes by itself."""

import errno
import hashlib
import os
import pathlib
import struct
import tempfile
import unittest
from unittest import mock

from support import POLICY, batch_of, engine_of, tiny
from treadle_torch import checkpoint
from treadle_torch.errors import Refusal
from treadle_torch.optimiser import Step

STEP = Step(0.01, 1.0, 1.0, 0.9, 0.99, 1e-8, 0.0)


class Written(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "engine")
        self.engine = engine_of(tiny())
        self.addCleanup(self.engine.close)

    def train(self):
        batch = batch_of(rows=4, columns=10)
        self.engine.submit(lambda: self.engine.forward_backward(batch, POLICY)).result()
        self.engine.submit(lambda: self.engine.optim_step(STEP)).result()

    def save(self) -> checkpoint.Saved:
        return self.engine.submit(self.engine.save).result()

    def test_a_file_has_what_the_pieces_say_and_its_own_checksum(self):
        for piece in (7, 64, 2**22):
            with self.subTest(piece=piece), mock.patch.object(checkpoint, "PIECE_BYTES", piece):
                self.train()
                saved = self.save()
                summed = saved.write_to(self.path)
                data = pathlib.Path(self.path).read_bytes()
                self.assertEqual(data, b"".join(saved.stream()))
                self.assertEqual(len(data), saved.num_bytes)
                self.assertEqual(summed, hashlib.sha256(data).hexdigest())
                self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)

    def test_it_is_what_was_before_the_steps_that_are_taken_while_it_is_written(self):
        self.train()
        before = b"".join(self.save().stream())
        saved = self.save()
        self.train()
        saved.write_to(self.path)
        self.assertEqual(pathlib.Path(self.path).read_bytes(), before)
        self.assertNotEqual(b"".join(self.save().stream()), before)
        self.engine.submit(lambda: self.engine.load_checkpoint(before)).result()
        self.assertEqual(b"".join(self.save().stream()), before)

    def test_one_whose_header_nests_or_has_no_counts_is_refused(self):
        good = b'{"policyVersion": 1, "steps": 1, "layout": %s}'
        nested = b"[" * 400 + b"]" * 400
        deep = b"[" * 200_000
        for header in (deep, good % deep, good % nested, good % (b'[{"name": "w", "shape": %s}]' % nested), b'{"policyVersion": Infinity}', b'{"policyVersion": NaN}', b"\xff"):
            with self.subTest(header[:60]):
                body = struct.pack("<II", checkpoint.MAGIC, len(header)) + header
                data = body + hashlib.sha256(body).digest()
                with self.assertRaises(Refusal) as refused:
                    checkpoint.read_checkpoint(data, self.engine.parameters)
                self.assertEqual(refused.exception.code, "checkpoint.corrupt")

    def test_a_file_is_read_again_and_refused_where_it_is_gone_cut_too_large_or_altered(self):
        self.train()
        saved = self.save()
        saved.write_to(self.path)
        before = b"".join(saved.stream())
        self.train()
        load = lambda: self.engine.submit(lambda: self.engine.load_checkpoint(checkpoint.read_file(self.path, self.engine.most_checkpoint_bytes))).result()  # noqa: E731
        load()
        self.assertEqual(b"".join(self.save().stream()), before)
        data = pathlib.Path(self.path).read_bytes()
        bad = {"cut": data[:-1], "altered": data[:-40] + bytes([data[-40] ^ 1]) + data[-39:], "too large": data + bytes(self.engine.most_checkpoint_bytes), "none": b""}
        for name, each in bad.items():
            with self.subTest(name):
                pathlib.Path(self.path).write_bytes(each)
                with self.assertRaises(Refusal) as refused:
                    load()
                self.assertEqual(refused.exception.code, "checkpoint.corrupt")
        os.unlink(self.path)
        with self.assertRaisesRegex(Refusal, "cannot be read"):
            load()
        self.assertEqual(b"".join(self.save().stream()), before)

    def test_a_process_that_goes_on_writing_an_older_one_writes_another_file(self):
        self.save().write_to(self.path)
        with open(self.path, "r+b") as older:
            self.train()
            summed = self.save().write_to(self.path)
            older.write(b"of an older one")
        self.assertEqual(hashlib.sha256(pathlib.Path(self.path).read_bytes()).hexdigest(), summed)

    def test_a_full_disk_says_so_and_a_link_is_replaced(self):
        saved = self.save()
        with mock.patch.object(checkpoint, "put", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            with self.assertRaisesRegex(Refusal, "no space left to write") as refused:
                saved.write_to(self.path)
        self.assertEqual(refused.exception.code, "disk.full")
        os.unlink(self.path)
        elsewhere = f"{self.path}-elsewhere"
        os.symlink(elsewhere, self.path)
        saved.write_to(self.path)
        self.assertFalse(os.path.islink(self.path) or os.path.exists(elsewhere))


if __name__ == "__main__":
    unittest.main()
