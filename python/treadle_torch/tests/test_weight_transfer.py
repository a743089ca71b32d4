"""Weights over a process group of two: real processes over gloo on the loopback interface, and what ends them."""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zlib
from dataclasses import replace
from unittest import mock

import torch
import transfer_peer
from transfer_peer import drawn, place_of, settings_of, ticket_of
from treadle_torch import weight_link, weight_transfer
from treadle_torch.crc import combined, crc32
from treadle_torch.errors import Refusal
from treadle_torch.weight_blocks import empty_rows, place_in, verify_rows
from treadle_torch.weight_files import FILE, Store, bytes_of
from treadle_torch.weight_link import Gone, LinkSettings, accept, check_backend, connect, interface_of, open_place
from treadle_torch.weight_transfer import DeviceStaging, HostStaging, Receivers

HERE = pathlib.Path(__file__).parent
CPU = torch.device("cpu")
SLOW_S = 0.2


class Peer:
    """`transfer_peer.py`."""

    def __init__(self, case: unittest.TestCase, *words: object) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        command = [sys.executable, str(HERE / "transfer_peer.py"), *map(str, words)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        case.addCleanup(self._end)
        self.ask(count=True)  # it has imported PyTorch

    def tell(self, **command: object) -> None:
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self):
        return json.loads(self._process.stdout.readline())

    def ask(self, **command: object):
        self.tell(**command)
        return self.hear()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Transfers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        small = mock.patch.object(weight_transfer, "BUCKET_BYTES", transfer_peer.BUCKET_BYTES)
        small.start()
        self.addCleanup(small.stop)

    def sender(self, timeout_s=20.0, *slow) -> Peer:
        """Each has a folder of its own: that of a killed one stays for a while."""
        return Peer(self, "send", tempfile.mkdtemp(dir=self.root), timeout_s, *slow)

    def receivers(self, timeout_s=20.0) -> Receivers:
        return Receivers(settings_of(timeout_s), CPU)

    def refused(self, code, what, act):
        with self.assertRaisesRegex(Refusal, what) as refused:
            act()
        self.assertEqual(refused.exception.code, code)

    def settles(self, peer, **expected):
        """What a link had is given back, soon."""
        until = time.monotonic() + 20
        while (found := peer.ask(count=True)) != expected and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(found, expected)

    def test_whatever_is_published_comes_to_two_receivers_by_one_link_each(self):
        """WC4."""
        sender, receivers = self.sender(), [self.receivers(), self.receivers()]
        links = ["", ""]
        for seed in range(6):
            ticket = ticket_of(sender.ask(publish=seed))
            for at, each in enumerate(receivers):
                place = place_of(sender.ask(offer=links[at]))
                if seed > 0:
                    self.assertEqual((place.link, place.port), (links[at], 0))
                else:
                    each.join(place)
                links[at] = place.link
                found = each.receive(place.link, ticket)
                for tensor, (_, expected) in zip(found, drawn(seed), strict=True):
                    self.assertEqual(tensor.dtype, expected.dtype)
                    self.assertTrue(torch.equal(tensor, expected))
        self.assertEqual(sender.ask(count=True)["links"], 2)
        for each in receivers:
            for link in each._open.values():
                link.close()
        self.settles(sender, links=0, threads=1)

    def test_an_altered_byte_and_numbers_that_are_not_finite_are_refused_and_the_link_goes_on(self):
        """WC4."""
        sender, receivers = self.sender(), self.receivers()
        given = sender.ask(zeros=50_000)
        ticket = ticket_of(given)
        place = place_of(sender.ask(offer=""))
        receivers.join(place)
        path = pathlib.Path(ticket.store, ticket.folder, FILE)
        whole = path.read_bytes()
        for at, what in ((len(whole) - 1, "'zeros' has checksum"), (len(whole) - 150_000, "'zeros' has checksum")):
            path.write_bytes(whole[:at] + b"\1" + whole[at + 1 :])
            self.refused("engine.weights-mismatch", what, lambda: receivers.receive(place.link, ticket))
        path.write_bytes(whole)
        [found] = receivers.receive(place.link, ticket)
        self.assertEqual(float(found.sum()), 0)
        path.write_bytes(whole[:-4] + torch.tensor([float("nan")]).numpy().tobytes())
        size = 4 * 50_000
        altered = replace(ticket, tensors=(replace(ticket.tensors[0], crc32=zlib.crc32(path.read_bytes()[-size:])),))
        self.refused("engine.weights-mismatch", "'zeros' has numbers that are not finite", lambda: receivers.receive(place.link, altered))

    def test_weights_that_newer_ones_have_replaced_are_refused_and_those_are_taken(self):
        sender, receivers = self.sender(), self.receivers()
        first = ticket_of(sender.ask(publish=1))
        second = ticket_of(sender.ask(publish=2))
        place = place_of(sender.ask(offer=""))
        receivers.join(place)
        self.refused("engine.weights-mismatch", "not there any more: newer", lambda: receivers.receive(place.link, first))
        self.refused("engine.weights-mismatch", "not there any more", lambda: receivers.receive(place.link, replace(first, folder="../../etc")))
        found = receivers.receive(place.link, second)
        self.assertTrue(all(torch.equal(one, other) for one, (_, other) in zip(found, drawn(2), strict=True)))

    def test_a_transfer_has_one_version_whatever_is_published_meanwhile(self):
        """WC5."""
        sender, receiver = self.sender(20, SLOW_S / 4), self.receivers()
        ticket = ticket_of(sender.ask(zeros=200_000))
        place = place_of(sender.ask(offer=""))
        receiver.join(place)
        found: list[list[torch.Tensor]] = []
        thread = threading.Thread(target=lambda: found.append(receiver.receive(place.link, ticket)))
        thread.start()
        time.sleep(2 * SLOW_S)
        self.assertTrue(thread.is_alive())
        sender.ask(publish=3)
        thread.join()
        self.assertEqual([float(each.sum()) for each in found[0]], [0.0])

    def test_a_file_that_is_cut_short_while_it_is_sent_ends_the_link_and_not_the_sender(self):
        """WC3. The sender's process never reads what the file had."""
        sender, receivers = self.sender(20, SLOW_S), self.receivers()
        ticket = ticket_of(sender.ask(zeros=400_000))
        place = place_of(sender.ask(offer=""))
        receivers.join(place)
        threading.Timer(3 * SLOW_S, lambda: os.truncate(pathlib.Path(ticket.store, ticket.folder, FILE), 10_000)).start()
        self.refused("link.closed", "link to the trainer's process has failed", lambda: receivers.receive(place.link, ticket))
        self.settles(sender, links=0, threads=1)
        ticket = ticket_of(sender.ask(publish=4))
        place = place_of(sender.ask(offer=""))
        receivers.join(place)
        self.assertTrue(torch.equal(receivers.receive(place.link, ticket)[0], drawn(4)[0][1]))

    def test_a_sender_that_dies_or_stands_still_while_it_sends_is_named_and_the_next_link_is_another(self):
        """WC3."""
        for number, code, what, timeout_s in (
            (signal.SIGKILL, "link.closed", "link to the trainer's process has failed", 20.0),
            (signal.SIGSTOP, "worker.late", "trainer's process.*did not send weights within 4 s", 4.0),
        ):
            with self.subTest(number=number):
                sender, receivers = self.sender(20, SLOW_S), self.receivers(timeout_s)
                ticket = ticket_of(sender.ask(zeros=400_000))
                place = place_of(sender.ask(offer=""))
                receivers.join(place)
                threading.Timer(3 * SLOW_S, lambda s=sender, n=number: s.signal(n)).start()
                self.refused(code, what, lambda r=receivers, p=place, t=ticket: r.receive(p.link, t))
                self.assertEqual(receivers.num_links, 0)
                sender.signal(signal.SIGCONT) if number == signal.SIGSTOP else sender._end()
                other = sender if number == signal.SIGSTOP else self.sender()
                if number == signal.SIGSTOP:
                    self.settles(other, links=0, threads=1)
                ticket = ticket_of(other.ask(publish=4))
                receivers = self.receivers()
                place = place_of(other.ask(offer=place.link))
                receivers.join(place)
                found = receivers.receive(place.link, ticket)
                self.assertTrue(torch.equal(found[0], drawn(4)[0][1]))

    def test_a_sender_that_stands_still_before_they_have_met_is_named(self):
        """WC3."""
        sender, receivers = self.sender(), self.receivers(1.5)
        place = place_of(sender.ask(offer=""))
        sender.signal(signal.SIGSTOP)
        self.refused("worker.late", "trainer's process at '127.0.0.1:[0-9]+' did not .* within 1.5 s", lambda: receivers.join(place))

    def test_a_receiver_that_dies_or_stands_still_while_it_takes_leaves_nothing_at_the_sender(self):
        """WC3."""
        sender = self.sender(4)
        given = sender.ask(zeros=2_000_000)
        for number in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(number=number):
                receiver = Peer(self, "receive", 20, SLOW_S)
                receiver.tell(receive=given, place=sender.ask(offer=""))
                self.assertEqual(receiver.hear(), "begun")
                time.sleep(5 * SLOW_S)
                self.assertEqual(sender.ask(count=True)["links"], 1)
                receiver.signal(number)
                self.settles(sender, links=0, threads=1)
                if number == signal.SIGSTOP:
                    receiver.signal(signal.SIGCONT)
                    answer = receiver.hear()
                    self.assertEqual(answer["code"], "link.closed")
                    self.assertIn("receiver's process did not take weights within 4 s", answer["message"])
        whole = Peer(self, "receive", 20)
        whole.tell(receive=given, place=sender.ask(offer=""))
        self.assertEqual([whole.hear(), whole.hear()], ["begun", {"sums": [0.0]}])

    def test_nobody_who_is_awaited_in_vain_keeps_a_port(self):
        """WC3."""
        sender = self.sender(0.5)
        place = place_of(sender.ask(offer=""))
        self.settles(sender, links=0, threads=1)
        with self.assertRaisesRegex(Gone, "nobody listens"):
            connect(place, 1)

    def test_strangers_are_turned_away_and_the_receiver_is_taken_all_the_same(self):
        """WC1."""
        sender, receivers = self.sender(), self.receivers()
        ticket = ticket_of(sender.ask(publish=5))
        place = place_of(sender.ask(offer=""))
        silent = [socket.create_connection((place.host, place.port)) for _ in range(3)]
        self.addCleanup(lambda: [each.close() for each in silent])
        for wrong in (replace(place, secret=bytes(32)), replace(place, link="0" * 16)):
            with self.assertRaisesRegex(Gone, "refused the link's secret"):
                connect(wrong, 5)
        loud = socket.create_connection((place.host, place.port))
        loud.sendall(os.urandom(10_000))
        loud.close()
        receivers.join(place)
        self.assertEqual(len(receivers.receive(place.link, ticket)), len(ticket.tensors))
        # Who is silent is closed after a while.
        silent[0].settimeout(20)
        while silent[0].recv(100):
            pass
        # Nobody listens any more.
        with self.assertRaisesRegex(Gone, "nobody listens"):
            connect(place, 5)

    def test_who_listens_without_the_secret_is_found_out(self):
        """WC1."""
        place, listener = open_place(settings_of(5))
        thread = threading.Thread(target=lambda: self._accepted(listener, replace(place, secret=bytes(32))))
        thread.start()
        with self.assertRaisesRegex(Gone, "refused the link's secret"):
            connect(place, 5)
        thread.join()

    def _accepted(self, listener, place):
        with self.assertRaises(weight_link.Late):
            accept(listener, place, 1)

    def test_who_joins_the_group_without_the_secret_is_found_out(self):
        """WC2."""
        sender, receivers = self.sender(), self.receivers()
        place = place_of(sender.ask(offer=""))
        code = weight_link._code
        with mock.patch.object(weight_link, "_code", lambda key, role: bytes(32) if role == weight_link.RECEIVER else code(key, role)):
            self.refused("link.closed", "has failed", lambda: receivers.join(place))
        self.settles(sender, links=0, threads=1)


class Parts(unittest.TestCase):
    def test_checksums_are_those_of_zlib(self):
        for _ in range(20):
            one, other = random.randbytes(random.randrange(20_000)), random.randbytes(random.randrange(9))
            self.assertEqual(crc32(one), zlib.crc32(one))
            self.assertEqual(crc32(memoryview(one), crc32(other)), zlib.crc32(other + one))

    def test_checksums_of_parts_are_combined(self):
        for seed in range(30):
            draw = random.Random(seed)
            parts = [draw.randbytes(draw.choice([0, 1, 255, 4096, draw.randrange(9000)])) for _ in range(draw.randrange(6))]
            self.assertEqual(combined([zlib.crc32(part) for part in parts], [len(part) for part in parts]), zlib.crc32(b"".join(parts)))

    def test_bytes_are_staged_alike_on_the_host_and_on_a_device_however_they_are_cut(self):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for seed in range(12):
            with tempfile.TemporaryDirectory() as root, self.subTest(seed=seed):
                ticket = Store(root, "treadle-run-1").write(1, drawn(seed))
                whole = b"".join(bytes(bytes_of(each.contiguous())) for _, each in drawn(seed) if each.numel())
                flat = torch.frombuffer(bytearray(whole), dtype=torch.uint8) if whole else torch.empty(0, dtype=torch.uint8)
                with mock.patch.object(weight_transfer, "PIECE_BYTES", 1000):
                    for staging in (HostStaging(ticket), DeviceStaging(ticket, device)):
                        with staging:
                            for start in range(0, len(flat), 777):
                                end = min(start + 777, len(flat))
                                staging.window(start, end).copy_(flat[start:end])
                                staging.came(start, end)
                            for tensor, (_, expected) in zip(staging.verified(), drawn(seed), strict=True):
                                self.assertTrue(torch.equal(tensor.cpu(), expected))
                rows = empty_rows(ticket.tensors, CPU)
                place_in(rows, ticket.tensors, 0, flat)
                self.assertEqual(len(verify_rows(ticket, rows)), len(ticket.tensors))

    def test_a_backend_that_cannot_be_is_refused_with_the_remedy(self):
        for backend, device, what in (("nccl", CPU, "set it to 'gloo'"), ("nccl", torch.device("cuda"), "set engine.collective to 'off'")):
            with mock.patch("torch.distributed.is_nccl_available", return_value=False), self.assertRaisesRegex(Refusal, what) as refused:
                check_backend(backend, device)
            self.assertEqual(refused.exception.code, "config.invalid")
        check_backend("gloo", CPU)

    def test_a_group_has_its_sockets_where_others_reach_it(self):
        self.assertEqual(LinkSettings("gloo", "0.0.0.0", "10.0.0.5", 1).own, "10.0.0.5")
        self.assertEqual(LinkSettings("gloo", "10.0.0.4", "10.0.0.5", 1).own, "10.0.0.4")
        if sys.platform == "linux":
            self.assertEqual(interface_of("127.0.0.1"), "lo")
            self.assertIsNone(interface_of("203.0.113.9"))


if __name__ == "__main__":
    unittest.main()
