"""Weights that one process publishes in a device's memory and another maps. Without a device, blocks are those of `HostBlocks`."""

import contextlib
import fcntl
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
import zlib
from dataclasses import replace
from unittest import mock

import torch
from support import POLICY, batch_of, engine_of, tiny
from treadle_torch import crc, weight_blocks
from treadle_torch.crc import ROW_BYTES, checksums, num_rows
from treadle_torch.device import place
from treadle_torch.engine import Engine
from treadle_torch.errors import Refusal
from treadle_torch.optimiser import Step
from treadle_torch.weight_blocks import CudaBlocks
from treadle_torch.weight_files import Device, Obstacle, Root, Store, Ticket, read

STEP = Step(0.01, 1.0, 1.0, 0.9, 0.99, 1e-8, 0.0)


class Checksums(unittest.TestCase):
    def test_are_those_of_zlib_whatever_the_sizes(self):
        for seed in range(60):
            draw = random.Random(seed)
            sizes = [draw.choice([0, 1, 2, 255, 256, 257, 512, 1000, draw.randrange(60_000)]) for _ in range(draw.randrange(1, 9))]
            parts = [draw.randbytes(size) for size in sizes]
            rows = b"".join(bytes(num_rows(len(part)) * ROW_BYTES - len(part)) + part for part in parts)
            given = torch.frombuffer(bytearray(rows), dtype=torch.uint8) if rows else torch.empty(0, dtype=torch.uint8)
            with self.subTest(seed=seed, sizes=sizes), mock.patch.object(crc, "ROWS", draw.choice([1, 7, 2**20])):
                self.assertEqual(checksums(given.view(-1, ROW_BYTES), sizes), [zlib.crc32(part) for part in parts])


    @unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
    def test_on_a_device_one_kernel_computes_them(self):
        self.assertIsNot(crc._kernel(), crc._by_words)
        for seed in range(20):
            draw = random.Random(seed)
            parts = [draw.randbytes(draw.randrange(300_000)) for _ in range(3)]
            rows = b"".join(bytes(num_rows(len(part)) * ROW_BYTES - len(part)) + part for part in parts)
            given = torch.frombuffer(bytearray(rows), dtype=torch.uint8).view(-1, ROW_BYTES).cuda()
            self.assertEqual(checksums(given, [len(part) for part in parts]), [zlib.crc32(part) for part in parts])


class HostBlock:
    def __init__(self, blocks: "HostBlocks", rows: int, handle: bytes):
        self.rows = torch.full((rows, ROW_BYTES), 0xAB, dtype=torch.uint8)
        self.handle = handle
        self._blocks = blocks

    def free(self):
        del self._blocks.made[self.handle]


class HostBlocks:
    """Memory of the host, which is lost with its block as a device's is."""

    uuid = "host"

    def __init__(self):
        self.made: dict[bytes, HostBlock] = {}
        self.has_room = True

    def make(self, rows):
        if not self.has_room:
            return None
        handle = os.urandom(64)
        self.made[handle] = HostBlock(self, rows, handle)
        return self.made[handle]

    @contextlib.contextmanager
    def map(self, handle, rows):
        if handle not in self.made:
            raise OSError("no such block")
        yield self.made[handle].rows
        assert handle in self.made, "the block was freed while it was mapped"


class Published(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.store = Store(folder.name, "treadle-run-1-weights")
        self.roots = [Root(folder.name, "treadle-run-")]
        self.blocks = HostBlocks()
        self.trainer, self.receiver = self.engine(), self.engine()

    def engine(self, dtype="bfloat16") -> Engine:
        engine = Engine(tiny(dtype), 4, place("auto", dtype), blocks=self.blocks)
        self.addCleanup(engine.close)
        return engine

    def do(self, engine, act):
        return engine.submit(act).result()

    def train(self):
        batch = batch_of(rows=4, columns=10)
        self.do(self.trainer, lambda: self.trainer.forward_backward(batch, POLICY))
        self.do(self.trainer, lambda: self.trainer.optim_step(STEP))

    def publish(self) -> Ticket:
        self.train()
        ticket = self.do(self.trainer, lambda: self.trainer.publish(self.store))
        self.assertIsInstance(ticket, Ticket)
        return ticket

    def load(self, ticket, receiver=None):
        engine = receiver or self.receiver
        return self.do(engine, lambda: engine.load_from_device(ticket, self.roots))

    def numbers(self, engine) -> list[list[float]]:
        return self.do(engine, lambda: [each.float().flatten().tolist() for each in engine.parameters.used()])

    def refused(self, ticket, what):
        before = self.numbers(self.receiver)
        with self.assertRaisesRegex(Refusal, what) as refused:
            self.load(ticket)
        self.assertEqual(refused.exception.code, "engine.weights-mismatch")
        self.assertEqual(self.numbers(self.receiver), before)

    def test_a_receiver_gets_them_and_no_file_is_written(self):
        """WB3."""
        for dtype in ("bfloat16", "float32"):
            for version in (1, 2):
                with self.subTest(dtype=dtype, version=version):
                    ticket = self.publish()
                    receiver = self.engine(dtype)
                    self.load(ticket, receiver)
                    self.assertEqual(self.numbers(receiver), self.numbers(self.trainer))
                    self.assertEqual(receiver.policy_version, self.trainer.policy_version)
                    self.assertEqual(os.listdir(os.path.join(ticket.store, ticket.folder)), ["device"])
                    self.assertEqual(len(self.blocks.made), 1)

    def test_a_file_of_them_has_the_checksums_that_were_announced_also_after_the_device_was_left(self):
        for leaves in (False, True):
            with self.subTest(leaves=leaves):
                ticket = self.publish()
                published = self.numbers(self.trainer)
                if leaves:
                    self.do(self.trainer, lambda: self.trainer.release(["weights"]))
                    self.assertEqual(self.blocks.made, {})
                    self.refused(ticket, "not there any more")
                    self.do(self.trainer, lambda: self.trainer.restore(["weights"]))
                self.train()  # what was published stays what it was
                written = self.do(self.trainer, lambda t=ticket: self.trainer.write_file(self.store, t.folder))
                self.assertEqual(written, replace(ticket, device=None))
                self.assertEqual([each.float().flatten().tolist() for each in read(written, self.roots)], published)
                again = self.do(self.trainer, lambda t=ticket: self.trainer.write_file(self.store, t.folder))
                self.assertEqual(again, written)

    def test_a_block_that_is_mapped_outlives_newer_ones_and_a_release(self):
        """WB1, WB2."""
        ticket = self.publish()
        with weight_blocks.verified(ticket, self.roots, self.blocks) as views:
            before = [each.float().flatten().tolist() for each in views]
            self.publish()
            self.do(self.trainer, lambda: self.trainer.release(["weights"]))
            self.assertEqual(list(self.blocks.made), [ticket.device.handle])
            self.assertEqual([each.float().flatten().tolist() for each in views], before)
        self.do(self.trainer, lambda: self.trainer.restore(["weights"]))
        newest = self.publish()
        self.assertEqual(list(self.blocks.made), [newest.device.handle])
        self.refused(ticket, "not there any more|left the device")

    def test_an_altered_byte_is_refused_with_its_tensor(self):
        """WB3."""
        ticket = self.publish()
        for index, end in ((0, 0), (len(ticket.tensors) - 1, len(ticket.tensors) - 1)):
            rows = self.blocks.made[ticket.device.handle].rows
            row = sum(num_rows(each.num_bytes) for each in ticket.tensors[: end + 1]) - 1
            rows[row, -1] ^= 1
            self.refused(ticket, f"'{ticket.tensors[index].name}' has checksum")
            rows[row, -1] ^= 1
        self.load(ticket)

    def test_numbers_that_are_not_finite_are_refused(self):
        """WB3."""
        self.do(self.trainer, lambda: self.trainer.parameters.used()[1].detach().view(-1)[0].fill_(float("nan")))
        ticket = self.do(self.trainer, lambda: self.trainer.publish(self.store))
        self.refused(ticket, f"'{ticket.tensors[1].name}' has numbers that are not finite")

    def test_what_is_elsewhere_or_gone_is_refused(self):
        ticket = self.publish()
        self.refused(replace(ticket, device=Device("other", ticket.device.handle)), "on the device 'other'")
        self.refused(replace(ticket, device=Device("host", bytes(64))), "cannot be mapped: no such block")
        self.refused(replace(ticket, nonce="0" * 32), "another nonce")
        self.refused(replace(ticket, store="/elsewhere/treadle-run-1-weights"), "no folder of this run")
        newest = self.publish()
        self.refused(ticket, "not there any more")
        with self.assertRaisesRegex(Refusal, "not there any more"):
            self.do(self.trainer, lambda: self.trainer.write_file(self.store, ticket.folder))
        self.load(newest)

    def test_without_room_on_the_device_or_with_weights_released_they_are_in_a_file(self):
        self.blocks.has_room = False
        ticket = self.publish()
        self.assertIsNone(ticket.device)
        read(ticket, self.roots)
        self.blocks.has_room = True
        self.publish()
        self.do(self.trainer, lambda: self.trainer.release(["weights"]))
        ticket = self.do(self.trainer, lambda: self.trainer.publish(self.store))
        self.assertIsNone(ticket.device)
        self.assertEqual(self.blocks.made, {})
        read(ticket, self.roots)

    def test_without_room_for_a_file_they_are_on_the_device_all_the_same(self):
        with mock.patch("treadle_torch.weight_files.SPARE_BYTES", 2**60):
            ticket = self.publish()
            self.load(ticket)
            refused = self.do(self.trainer, lambda: self.trainer.write_file(self.store, ticket.folder))
            self.assertRegex(refused.reason, "MiB free where")
        self.assertEqual(self.do(self.trainer, lambda: self.trainer.write_file(self.store, ticket.folder)), replace(ticket, device=None))

    def test_where_nothing_can_be_written_no_block_is_kept(self):
        self.train()
        store = Store("/proc/nowhere", "treadle-run-1-weights")
        self.assertIsInstance(self.do(self.trainer, lambda: self.trainer.publish(store)), Obstacle)
        self.assertEqual(self.blocks.made, {})

    def test_whoever_opens_the_file_of_a_block_that_is_being_taken_is_refused(self):
        """WB2: it was there when it was looked for, and is gone when it is locked."""
        ticket = self.publish()
        lock = fcntl.flock

        def taken_first(fd, how):
            if how == fcntl.LOCK_SH | fcntl.LOCK_NB:
                os.unlink(os.path.join(ticket.store, ticket.folder, "device"))
            lock(fd, how)

        with mock.patch.object(weight_blocks.fcntl, "flock", taken_first):
            self.refused(ticket, "left the device")

    def test_memory_of_weights_has_room_for_those_that_are_published(self):
        size = lambda: next(each.num_bytes for each in self.do(self.trainer, self.trainer.tags) if each.tag == "weights")  # noqa: E731
        before = size()
        self.publish()
        published = sum(block.rows.numel() for block in self.blocks.made.values())
        self.assertEqual(size() - before, published)
        self.do(self.trainer, lambda: self.trainer.release(["weights"]))
        self.assertEqual(size() - before, published)

    def test_a_publication_that_fails_keeps_no_block(self):
        self.train()
        publish = lambda: self.do(self.trainer, lambda: self.trainer.publish(self.store))  # noqa: E731
        with mock.patch("treadle_torch.weight_blocks.Offer.open_to_others", side_effect=OSError(24, "Too many open files")):
            for _ in range(2):
                with self.assertRaises(OSError):
                    publish()
        self.assertEqual(self.blocks.made, {})
        with mock.patch("treadle_torch.weight_blocks.checksums", side_effect=torch.OutOfMemoryError("none left")):
            self.assertIsNone(publish().device)
        self.assertEqual(self.blocks.made, {})
        self.load(publish())

    def test_a_block_that_is_mapped_at_a_release_leaves_with_the_next(self):
        """WB2."""
        ticket = self.publish()
        release = lambda: self.do(self.trainer, lambda: self.trainer.release(["weights"]))  # noqa: E731
        with weight_blocks.verified(ticket, self.roots, self.blocks):
            release()
            self.assertEqual(len(self.blocks.made), 1)
        release()
        self.assertEqual(self.blocks.made, {})

    def test_an_engine_without_blocks_refuses_what_is_on_a_device(self):
        ticket = self.publish()
        plain = engine_of(tiny())
        self.addCleanup(plain.close)
        with self.assertRaisesRegex(Refusal, "maps no device's memory"):
            self.load(ticket, plain)


PUBLISHER = """
import os, sys
sys.path[:0] = [{sources!r}, {tests!r}]
import torch
from support import tiny
from treadle_torch.device import place
from treadle_torch.engine import Engine
from treadle_torch.weight_blocks import CudaBlocks
from treadle_torch.weight_files import Store
placement = place("cuda", "bfloat16")
engine = Engine(tiny("bfloat16"), 1, placement, blocks=CudaBlocks(placement.device))
store = Store({root!r}, "treadle-run-1-weights")
def act(job): return engine.submit(job).result()
act(lambda: engine.parameters.used()[0].detach().fill_(0.25))
ticket = act(lambda: engine.publish(store))
print(repr(ticket), flush=True)
for line in sys.stdin:
    act(lambda: eval(line, dict(engine=engine, store=store)))
    print("done", flush=True)
"""


class WithoutTheDriver(unittest.TestCase):
    def test_there_are_no_blocks(self):
        with mock.patch.object(torch.cuda, "get_device_properties"), mock.patch.object(weight_blocks.ctypes, "CDLL", side_effect=OSError("libcuda.so.1")):
            self.assertIsNone(weight_blocks.blocks_of(torch.device("cuda")))


@unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
class OnCuda(unittest.TestCase):
    def test_another_process_maps_them(self):
        with tempfile.TemporaryDirectory() as root:
            sources = str(pathlib.Path(weight_blocks.__file__).parents[1])
            script = PUBLISHER.format(sources=sources, tests=str(pathlib.Path(__file__).parent), root=root)
            publisher = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.addCleanup(publisher.wait)
            self.addCleanup(publisher.kill)

            def tell(line):
                publisher.stdin.write(f"{line}\n")
                publisher.stdin.flush()
                self.assertEqual(publisher.stdout.readline(), "done\n")

            names = {name: getattr(weight_blocks, name, None) for name in ("Ticket", "Tensor")}
            ticket = eval(publisher.stdout.readline(), {**names, "Device": Device})
            placement = place("cuda", "bfloat16")
            receiver = Engine(tiny("bfloat16"), 1, placement, blocks=CudaBlocks(placement.device))
            self.addCleanup(receiver.close)
            load = lambda given: receiver.submit(lambda: receiver.load_from_device(given, [Root(root, "treadle-run-")])).result()  # noqa: E731
            for _ in range(3):
                load(ticket)
            self.assertEqual(set(receiver.parameters.used()[0].float().flatten().tolist()), {0.25})
            with self.assertRaisesRegex(Refusal, "cannot be mapped"):
                load(replace(ticket, device=replace(ticket.device, handle=bytes(64))))
            free = torch.cuda.mem_get_info()[0]
            for _ in range(20):
                tell("engine.publish(store)")
            self.assertLess(abs(free - torch.cuda.mem_get_info()[0]), 8 * 2**20)
            tell("engine.release(['weights'])")
            with self.assertRaisesRegex(Refusal, "not there any more"):
                load(ticket)


if __name__ == "__main__":
    unittest.main()
