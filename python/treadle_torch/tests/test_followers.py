"""How the first process of an engine watches the others; they are small programs here."""

import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from treadle_torch.followers import ENDED, Followers

SILENCE_S = 6.0
ALIVE = "import time\nwhile True:\n    print(flush=True)\n    time.sleep(0.2)"
SLOW_START = f"import time\ntime.sleep({1.5 * SILENCE_S})\n{ALIVE}"


class Watched(Followers):
    """Says how it would have ended."""

    def __init__(self, program):
        self._is_ending = False
        self._silence_s = SILENCE_S
        self.ended = threading.Event()
        self.status = None
        self._children = [subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)]
        self.said = []
        threading.Thread(target=self._watch, args=(1, self._children[0]), daemon=True).start()

    def _end_all(self, status):
        self.status = status
        self.ended.set()
        self.end()

    def close(self):
        self.end()
        self._children[0].wait()


class Silence(unittest.TestCase):
    def test_one_that_is_stopped_ends_all_and_is_named(self):
        """PF3."""
        with mock.patch("sys.stderr.write") as write:
            watched = Watched(ALIVE)
            time.sleep(1)
            self.assertFalse(watched.ended.is_set())
            watched._children[0].send_signal(signal.SIGSTOP)
            self.assertTrue(watched.ended.wait(60))
            said = "".join(call.args[0] for call in write.call_args_list)
        self.assertEqual(watched.status, ENDED)
        self.assertRegex(said, "process '1' of the engine's '2' said nothing for 6.0 s, so it is stopped or frozen")
        watched.close()

    def test_one_that_speaks_or_has_not_begun_to_is_left_alone(self):
        """PF3."""
        for program in (ALIVE, SLOW_START):
            watched = Watched(program)
            self.assertFalse(watched.ended.wait(2 * SILENCE_S))
            watched.close()
            self.assertIsNone(watched.status)

    def test_one_that_is_killed_is_named_with_its_signal(self):
        """PF2."""
        with mock.patch("sys.stderr.write") as write:
            watched = Watched(ALIVE)
            watched._children[0].kill()
            self.assertTrue(watched.ended.wait(60))
            said = "".join(call.args[0] for call in write.call_args_list)
        self.assertRegex(said, "process '1' of the engine's '2' was ended by signal 9")
        watched.close()


if __name__ == "__main__":
    unittest.main()
