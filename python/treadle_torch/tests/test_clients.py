"""Several clients of one engine: what each needs stays, what none needs goes."""

import random
import unittest

from support import POLICY, batch_of, engine_of, generate, tiny
from treadle_torch.clients import OWNER, Needs
from treadle_torch.engine import TAGS
from treadle_torch.errors import Refusal
from treadle_torch.generation import Generation, Prompt, Sampling

PROMPTS = [(9, [1, 2, 3]), (3, [4]), (5, [6, 7, 8, 9])]


class WhoNeedsWhat(unittest.TestCase):
    def test_a_tag_comes_with_the_first_client_and_leaves_with_the_last(self):
        """MC1, against a plain list of who has what."""
        draw = random.Random(5)
        for _ in range(300):
            needs, clients = Needs(), [OWNER, "a", "b"]
            has = {client: set() for client in clients}
            cached: set[str] = set()
            on_device: set[str] = set()
            for client in clients[1:]:
                needs.attach(client)
            for _ in range(30):
                client, tags = draw.choice(clients), draw.sample(TAGS, draw.randint(1, 3))
                act = draw.choice(["restore", "release", "generate"])
                if act == "restore":
                    on_device.update(needs.restore(client, tags))
                    has[client].update(tags)
                elif act == "release":
                    on_device.difference_update(needs.release(client, tags))
                    has[client].difference_update(tags)
                    cached &= {each for each in clients if "cache" in has[each]}
                elif needs.has(client, "weights", "cache"):
                    needs.generates(client)
                    on_device.add("cache")
                    cached.add(client)
                for tag in ("weights", "optimiser"):
                    self.assertEqual(tag in on_device, any(tag in own for own in has.values()))
                for each in clients:
                    self.assertEqual(needs.has_cache(each), each in cached)
                    self.assertEqual({tag for tag in TAGS if needs.has(each, tag)}, has[each])
                self.assertLessEqual(bool(cached), "cache" in on_device)


class Clients(unittest.TestCase):
    def setUp(self):
        self.engine = engine_of(tiny("bfloat16"), "bfloat16")
        self.do(lambda: self.engine.attach("a"))

    def tearDown(self):
        self.engine.close()

    def do(self, act):
        return self.engine.submit(act).result()

    def sample(self, client):
        generation = Generation(Sampling(5, 1.0, frozenset(), 77, False), [Prompt(*one) for one in PROMPTS], client)
        self.do(lambda: self.engine.generate(generation))
        replies = []
        while (told := generation.replies.get()) is not None:
            if isinstance(told, Exception):
                raise told
            replies += [(reply.index, reply.tokens) for reply in told.replies]
        return sorted(replies)

    def is_on_device(self, tensors):
        return all(each.device == self.engine.placement.device for each in tensors)

    def test_weights_that_another_needs_stay_where_they_are(self):
        engine = self.engine
        self.do(lambda: engine.restore(["weights", "cache"], "a"))
        self.do(lambda: engine.forward_backward(batch_of(rows=3, columns=8), POLICY))
        expected = self.sample("a")
        moved = self.do(lambda: engine.release(TAGS))
        self.assertTrue(self.is_on_device(engine.parameters.held()))
        self.assertEqual(moved.num_bytes, sum(each.numel() * each.element_size() for each in engine.optimiser.held()) if engine.placement.is_cuda else 0)
        self.assertEqual(self.sample("a"), expected)
        with self.assertRaisesRegex(Refusal, "call restore first"):
            self.do(lambda: engine.forward_backward(batch_of(rows=3, columns=8), POLICY))
        self.do(lambda: engine.restore(TAGS))
        self.do(lambda: engine.release(["weights", "cache"], "a"))
        self.assertTrue(self.is_on_device(engine.parameters.held()))
        with self.assertRaisesRegex(Refusal, "call restore first"):
            self.sample("a")
        self.do(lambda: engine.release(["weights"]))
        if engine.placement.is_cuda:
            self.assertFalse(self.is_on_device(engine.parameters.held()))
        self.do(lambda: engine.restore(["weights"]))
        self.do(lambda: engine.restore(["weights", "cache"], "a"))
        self.assertEqual(self.sample("a"), expected)

    def test_each_tells_what_it_needs_and_nothing_of_the_others(self):
        engine = self.engine
        self.do(lambda: engine.restore(["weights", "cache"], "a"))
        self.sample("a")
        bytes_of = lambda client: {each.tag: each.num_bytes for each in self.do(lambda: engine.tags(client))}  # noqa: E731
        self.assertEqual(bytes_of(OWNER)["cache"], 0)
        self.assertGreater(bytes_of("a")["cache"], 0)
        self.assertNotIn("optimiser", bytes_of("a"))
        self.assertEqual(bytes_of("a")["weights"], bytes_of(OWNER)["weights"])
        alone = self.do(lambda: engine.memory(OWNER))[0]
        self.assertEqual(self.do(lambda: engine.memory("a"))[0], sum(bytes_of("a").values()))
        self.do(lambda: engine.release(TAGS, "a"))
        self.assertEqual(self.do(lambda: engine.memory("a")), (0, 0))
        # What the other had, its release gives back, and the owner's is as before, up to what the allocator rounds.
        self.assertLessEqual(abs(self.do(lambda: engine.memory(OWNER))[0] - alone), 2**16)
        self.do(lambda: engine.restore(["weights", "cache"], "a"))
        self.do(lambda: engine.release(TAGS))
        left = self.do(lambda: engine.memory(OWNER))[0]
        self.assertLess(left, max(1, bytes_of(OWNER)["weights"]))

    def test_a_client_that_leaves_takes_what_it_needed_and_what_it_generates_along(self):
        engine = self.engine
        self.do(lambda: engine.restore(["weights", "cache"], "a"))
        self.do(lambda: engine.pause("a"))
        generation = Generation(Sampling(5, 1.0, frozenset(), 77, False), [Prompt(*one) for one in PROMPTS], "a")
        self.do(lambda: engine.generate(generation))
        self.assertEqual(len(generate(engine, PROMPTS, 5)), len(PROMPTS))
        self.do(lambda: engine.detach("a"))
        self.assertIsInstance(generation.replies.get(timeout=10), Refusal)
        with self.assertRaisesRegex(Refusal, "has left"):
            self.do(lambda: engine.restore(["weights"], "a"))
        self.do(lambda: engine.release(TAGS))
        if engine.placement.is_cuda:
            self.assertFalse(self.is_on_device(engine.parameters.held()))


if __name__ == "__main__":
    unittest.main()
