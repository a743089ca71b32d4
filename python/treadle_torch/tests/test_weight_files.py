"""Weights that one process writes and another reads: what is refused, and what stays on the disk."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace
from unittest import mock

import torch
from safetensors.torch import load_file
from support import POLICY, batch_of, engine_of, tiny
from treadle_torch import weight_files
from treadle_torch.errors import Refusal
from treadle_torch.optimiser import Step
from treadle_torch.weight_files import FILE, Obstacle, Root, Store, Ticket, read

STEP = Step(0.01, 1.0, 1.0, 0.9, 0.99, 1e-8, 0.0)
NAMED = [
    ("first", torch.arange(6.0).view(2, 3)),
    ("half", torch.arange(8, dtype=torch.bfloat16).view(2, 2, 2)),
    ("scalar", torch.tensor(7.5)),
    ("empty", torch.empty(0, 4)),
    ("last", torch.linspace(-1, 1, 5)),
]


class WeightFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.roots = [Root(self.root, "treadle-run-")]
        self.store = Store(self.root, "treadle-run-1-weights")

    def publish(self, version=3, named=NAMED) -> Ticket:
        ticket = self.store.write(version, named)
        self.assertIsInstance(ticket, Ticket)
        return ticket

    def file_of(self, ticket) -> pathlib.Path:
        return pathlib.Path(ticket.store, ticket.folder, FILE)

    def refused(self, ticket, what, roots=None):
        with self.assertRaisesRegex(Refusal, what) as refused:
            read(ticket, self.roots if roots is None else roots)
        self.assertEqual(refused.exception.code, "engine.weights-mismatch")
        self.assertIn(f"version '{ticket.policy_version}'", str(refused.exception))

    def test_what_was_written_is_read(self):
        ticket = self.publish()
        for tensor, (_, expected) in zip(read(ticket, self.roots), NAMED, strict=True):
            self.assertEqual(tensor.dtype, expected.dtype)
            self.assertTrue(torch.equal(tensor, expected))

    def test_other_programs_read_the_file(self):
        loaded = load_file(self.file_of(self.publish()))
        for name, expected in NAMED:
            self.assertTrue(torch.equal(loaded[name], expected))

    def test_pieces_are_written_and_read_as_a_whole(self):
        with mock.patch.object(weight_files, "PIECE_BYTES", 7):
            ticket = self.publish()
            self.assertTrue(torch.equal(read(ticket, self.roots)[0], NAMED[0][1]))
        self.assertTrue(torch.equal(read(ticket, self.roots)[4], NAMED[4][1]))

    def test_only_this_user_may_look(self):
        """WF2."""
        ticket = self.publish()
        modes = [os.stat(path).st_mode & 0o777 for path in (ticket.store, self.file_of(ticket).parent, self.file_of(ticket))]
        self.assertEqual(modes, [0o700, 0o700, 0o600])

    def test_a_file_that_is_cut_short_is_refused_with_the_tensor_in_which_it_ends(self):
        """WF3."""
        for cut, name in ((1, "last"), (21, "scalar"), (25, "half"), (41, "first")):
            ticket = self.publish()
            path = self.file_of(ticket)
            os.truncate(path, path.stat().st_size - cut)
            self.refused(ticket, f"bytes.*ends in '{name}'")

    def test_an_altered_byte_is_refused_with_its_tensor(self):
        """WF3."""
        size = self.file_of(self.publish()).stat().st_size
        for before_end, name in ((1, "last"), (24, "scalar"), (40, "half"), (64, "first")):
            ticket = self.publish()
            with open(self.file_of(ticket), "r+b") as file:
                file.seek(size - before_end)
                byte = file.read(1)[0]
                file.seek(size - before_end)
                file.write(bytes([byte ^ 1]))
            self.refused(ticket, f"'{name}' has checksum")

    def test_another_header_is_refused(self):
        """WF3."""
        ticket = self.publish()
        path = self.file_of(ticket)
        path.write_bytes(path.read_bytes().replace(b"first", b"fir5t"))
        self.refused(ticket, "header")

    def test_numbers_that_are_not_finite_are_refused(self):
        """WF3."""
        for value in (float("nan"), float("inf"), -float("inf")):
            for dtype in (torch.float32, torch.bfloat16):
                ticket = self.publish(named=[("good", torch.ones(3)), ("bad", torch.tensor([1.0, value, 2.0], dtype=dtype))])
                self.refused(ticket, "'bad' has numbers that are not finite")

    def test_a_file_that_is_not_there_any_more_is_refused(self):
        ticket = self.publish()
        self.publish(4)
        self.refused(ticket, "not there any more")

    def test_what_is_of_another_run_is_refused(self):
        """WF2."""
        ticket = self.publish()
        self.refused(ticket, "no folder of this run", [Root(self.root, "treadle-other-")])
        self.refused(ticket, "no folder of this run", [Root("/elsewhere", "treadle-run-")])
        self.refused(replace(ticket, store=f"{self.root}/treadle-run-1-weights/../treadle-run-1-weights"), "no folder of this run")

    def test_a_store_with_another_nonce_is_refused(self):
        """WF2."""
        ticket = self.publish()
        self.refused(replace(ticket, nonce="0" * 32), "another nonce")

    def test_links_are_refused_wherever_they_stand(self):
        """WF2."""
        ticket = self.publish()
        link = os.path.join(self.root, "treadle-run-linked")
        os.symlink(ticket.store, link)
        self.refused(replace(ticket, store=link), "a link")
        os.symlink(ticket.folder, os.path.join(ticket.store, "version-9-9"))
        self.refused(replace(ticket, folder="version-9-9"), "a link")
        path = self.file_of(ticket)
        path.rename(path.with_name("moved"))
        path.symlink_to("moved")
        self.refused(ticket, "a link")

    def test_what_others_may_enter_or_is_no_file_is_refused(self):
        """WF2."""
        ticket = self.publish()
        path = self.file_of(ticket)
        for shared in (path, path.parent, pathlib.Path(ticket.store)):
            shared.chmod(0o755)
            self.refused(ticket, "not this user's alone")
            shared.chmod(0o700)
        path.unlink()
        os.mkfifo(path, 0o600)
        self.refused(ticket, "bytes|no file")

    def test_one_ticket_is_kept_and_none_after_the_end(self):
        """WF1, WF4."""
        self.publish(1)
        ticket = self.publish(2)
        self.assertEqual(sorted(os.listdir(ticket.store)), ["nonce", "owner", ticket.folder])
        self.store.close()
        self.assertEqual(os.listdir(self.root), [])

    def test_a_write_that_fails_leaves_the_last_ticket(self):
        """WF1."""
        ticket = self.publish(1)
        with mock.patch.object(weight_files, "put", side_effect=OSError(28, "No space left on device")):
            obstacle = self.store.write(2, NAMED)
        self.assertEqual(obstacle, Obstacle(f"'{self.root}' cannot be written to: No space left on device"))
        self.assertEqual(sorted(os.listdir(ticket.store)), ["nonce", "owner", ticket.folder])
        read(ticket, self.roots)

    def test_without_room_nothing_is_written(self):
        with mock.patch.object(weight_files, "SPARE_BYTES", 2**60):
            obstacle = self.store.write(1, NAMED)
        self.assertRegex(obstacle.reason, "MiB free where '.*' are needed")
        self.assertEqual(sorted(os.listdir(os.path.join(self.root, "treadle-run-1-weights"))), ["nonce", "owner"])

    def test_what_a_killed_process_has_left_goes_and_what_a_living_one_has_stays(self):
        """WF4."""
        script = (
            "import os, sys, signal, torch; from treadle_torch.weight_files import Store\n"
            "Store(sys.argv[1], 'treadle-run-2-weights').write(1, [('a', torch.ones(2))]); os.kill(os.getpid(), signal.SIGKILL)"
        )
        sources = str(pathlib.Path(weight_files.__file__).parents[1])
        subprocess.run([sys.executable, "-c", script, self.root], env={**os.environ, "PYTHONPATH": sources}, check=False)
        self.assertEqual(os.listdir(self.root), ["treadle-run-2-weights"])
        foreign = pathlib.Path(self.root, "treadle-run-3-weights")
        foreign.mkdir()
        (foreign / "nonce").write_text("of another machine")
        (foreign / "owner").write_text("another/pid:[1]/1-1")
        self.publish()
        other = Store(self.root, "treadle-run-4-weights")
        other.write(1, NAMED)
        names = ["treadle-run-1-weights", "treadle-run-3-weights", "treadle-run-4-weights"]
        self.assertEqual(sorted(os.listdir(self.root)), names)


class Published(unittest.TestCase):
    def test_a_receiver_computes_as_the_trainer_does_in_whatever_numbers(self):
        """A trainer in bfloat16 writes what it computes with; its float32 weights lie behind."""
        for trained, received in (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "bfloat16")):
            with self.subTest(trained=trained, received=received), tempfile.TemporaryDirectory() as root:
                trainer, receiver = engine_of(tiny(trained), trained), engine_of(tiny(received), received)
                batch = batch_of(rows=4, columns=10)
                trainer.submit(lambda t=trainer, b=batch: t.forward_backward(b, POLICY)).result()
                trainer.submit(lambda t=trainer: t.optim_step(STEP)).result()
                score = lambda engine, b=batch: engine.submit(lambda: engine.score(b, "logprobs")).result()  # noqa: E731
                store = Store(root, "treadle-run-1")
                ticket = trainer.submit(lambda t=trainer, s=store: t.publish(s)).result()
                self.assertEqual({each.dtype for each in ticket.tensors}, {"BF16" if trained == "bfloat16" else "F32"})
                weights = read(ticket, [Root(root, "treadle-run-")])
                receiver.submit(lambda r=receiver, w=weights: r.load(w, 1)).result()
                difference = (score(receiver) - score(trainer)).abs().max()
                self.assertLessEqual(difference, 0 if trained == received else 0.1)
                if trained == received:
                    text = lambda engine: engine.submit(lambda: [each.tolist() for each in engine.parameters.used()]).result()  # noqa: E731
                    self.assertEqual(json.dumps(text(receiver)), json.dumps(text(trainer)))
                trainer.close()
                receiver.close()


if __name__ == "__main__":
    unittest.main()
