"""The engine on a device and in bfloat16: its sampler against its trainer, shapes, releases, settings."""

import threading
import time
import unittest
from unittest import mock

import torch
from support import CONTEXT, POLICY, batch_of, engine_of, generate, tiny
from treadle_torch.device import place
from treadle_torch.engine import TAGS, Engine
from treadle_torch.errors import Refusal
from treadle_torch.model import PassOptions
from treadle_torch.optimiser import Step

PROMPTS = [(key, [1 + (key * place) % 7 for place in range(1, 2 + key % 5)]) for key in range(11)]


class Weights(unittest.TestCase):
    @unittest.skipIf(torch.cuda.is_available(), "needs an engine on the host")
    def test_weights_that_are_nobody_elses_are_taken_where_they_lie_and_others_are_copied(self):
        scored = []
        batch = batch_of(rows=3, columns=8)
        for adopts in (True, False):
            engine = engine_of(tiny())
            draw = torch.Generator().manual_seed(5)
            given = [torch.randn(each.shape, generator=draw) for each in engine.parameters.used()]
            # Where a kernel would find it in the midst of a line of the cache; and in other numbers.
            given[1] = torch.cat([torch.zeros(1), given[1].flatten()])[1:].view(given[1].shape)
            given[2] = given[2].bfloat16()
            engine.submit(lambda e=engine, g=given, a=adopts: e.load(g, 3, adopts=a)).result()
            used = engine.parameters.used()
            self.assertTrue(all(torch.equal(one, other.float()) for one, other in zip(used, given)))
            taken = [one.data_ptr() == other.data_ptr() for one, other in zip(used, given)]
            self.assertEqual(taken, [adopts and index not in (1, 2) for index in range(len(given))])
            engine.submit(lambda e=engine: e.forward_backward(batch, POLICY)).result()
            engine.submit(lambda e=engine: e.optim_step(Step(1e-2, 1.0, 1.0, 0.9, 0.99, 1e-8, 0.1))).result()
            scored.append(engine.submit(lambda e=engine: e.score(batch, "logprobs")).result())
            engine.close()
        self.assertTrue(torch.equal(*scored))


    def test_a_few_parameters_do_not_hold_all_that_was_received(self):
        for alike in (0, 1):
            engine = engine_of(tiny())
            used = engine.parameters.used()
            given = [torch.ones(each.shape, dtype=torch.float32 if index == alike else torch.bfloat16) for index, each in enumerate(used)]
            engine.submit(lambda e=engine, g=given: e.load(g, 3, adopts=True)).result()
            self.assertTrue(all(torch.equal(one, other.float()) for one, other in zip(engine.parameters.used(), given)))
            self.assertLess(given[alike].nbytes, 0.5 * sum(each.nbytes for each in given))
            self.assertNotEqual(engine.parameters.used()[alike].data_ptr(), given[alike].data_ptr())
            engine.close()


class Generation(unittest.TestCase):
    def test_the_sampler_says_what_the_trainer_says(self):
        for dtype, most in (("float32", 1e-9), ("bfloat16", 1e-3)):
            engine = engine_of(tiny(dtype), dtype)
            made = generate(engine, PROMPTS, 15)
            rows = [prompt + tokens for (_, prompt), (tokens, _) in zip(PROMPTS, made)]
            batch = {"tokens": torch.tensor([row + [0] * (CONTEXT - len(row)) for row in rows], dtype=torch.int32)}
            scored = engine.submit(lambda b=batch: engine.score(b, "logprobs")).result()
            log_ratio = torch.cat([
                scored[row, len(prompt) : len(prompt) + len(tokens)] - torch.tensor(logprobs)
                for row, ((_, prompt), (tokens, logprobs)) in enumerate(zip(PROMPTS, made))
            ]).double()
            self.assertGreater(len(log_ratio), 100)
            self.assertLess((log_ratio.exp() - 1 - log_ratio).mean(), most)
            engine.close()

    def test_tokens_depend_on_nobody_beside_them(self):
        """TG1, GD2: in float32, alone or among others, in few slots or many, in shapes of any device."""
        engine = engine_of(tiny())
        expected = generate(engine, PROMPTS, 15)
        engine.close()
        for slots in (1, 3, 16):
            for has_blocks in (False, True):
                engine = engine_of(tiny(), slots=slots)
                model = engine._decoder._model
                if has_blocks:
                    model._block, model._num_positions = 8, 32
                    model.shape_of = lambda count, most=slots: min(most, 1 << (count - 1).bit_length())
                self._alike(generate(engine, PROMPTS, 15), expected)
                self._alike([generate(engine, [one], 15)[0] for one in PROMPTS[:3]], expected[:3])
                engine.close()

    def test_sequences_that_move_to_other_slots_go_on_as_they_were(self):
        engine = engine_of(tiny(), slots=16)
        moves = []
        model = engine._decoder._model
        move = model.move
        with mock.patch.object(model, "move", side_effect=lambda *given: (moves.append(given), move(*given))):
            made = generate(engine, PROMPTS, 15)
        engine.close()
        self.assertGreater(len(moves), 0)
        engine = engine_of(tiny(), slots=1)
        self._alike(made, generate(engine, PROMPTS, 15))
        engine.close()

    @unittest.skipUnless(torch.cuda.is_available(), "graphs are CUDA's")
    def test_recorded_steps_choose_the_same_tokens(self):
        made = []
        for uses_graphs in (False, True):
            engine = engine_of(tiny(), uses_graphs=uses_graphs)
            made.append(generate(engine, PROMPTS, 15) + generate(engine, PROMPTS[:3], 15))
            engine.close()
        self._alike(*made)

    def _alike(self, actual, expected):
        self.assertEqual([tokens for tokens, _ in actual], [tokens for tokens, _ in expected])
        for (_, one), (_, other) in zip(actual, expected):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=0, atol=1e-4)


class Training(unittest.TestCase):
    def test_checkpointed_and_compiled_passes_have_the_same_gradients(self):
        ways = [None, PassOptions(checkpoints=True), PassOptions(checkpoints=True, compiles=True)]
        gradients = []
        for passes in ways:
            engine = engine_of(tiny(passes=passes))
            engine.submit(lambda e=engine: e.forward_backward(batch_of(rows=4, columns=10), POLICY)).result()
            gradients.append(torch.cat([each.flatten() for each in engine.parameters.gradients]))
            engine.close()
        for other in gradients[1:]:
            torch.testing.assert_close(other, gradients[0], rtol=1e-3, atol=1e-5)


class Placement(unittest.TestCase):
    def test_what_cannot_be_is_refused_with_the_remedy(self):
        for device, dtype, expected in (("auto", "float16", "'float32' and 'bfloat16'"), ("tpu", "float32", "'auto', 'cpu' and 'cuda'")):
            with self.assertRaisesRegex(Refusal, expected):
                place(device, dtype)
        with mock.patch("torch.cuda.is_available", return_value=False):
            self.assertEqual(place("auto", "bfloat16").device.type, "cpu")
            with self.assertRaisesRegex(Refusal, "set engine.device to 'cpu'") as refused:
                place("cuda", "bfloat16")
            self.assertEqual(refused.exception.code, "config.invalid")

    def test_each_tag_is_released_and_restored_by_itself(self):
        """EJ3."""
        engine = engine_of(tiny("bfloat16"), "bfloat16")
        batch = batch_of(rows=3, columns=8)
        train = lambda: engine.submit(lambda: engine.forward_backward(batch, POLICY)).result()  # noqa: E731
        score = lambda: engine.submit(lambda: engine.score(batch, "logprobs")).result()  # noqa: E731
        sample = lambda: generate(engine, PROMPTS, 5)  # noqa: E731
        train()
        before = score(), sample(), engine.submit(lambda: engine.read("gradients")).result()
        for tag, refused, answered in (
            ("weights", [train, score, sample], []),
            ("optimiser", [train], [score, sample]),
            ("cache", [sample], [train, score]),
        ):
            moved = engine.submit(lambda t=tag: engine.release([t])).result()
            self.assertEqual(engine.health.released, (tag,))
            if engine.placement.is_cuda:
                self.assertEqual(moved.note, "")
                self.assertLess(moved.after.allocated, moved.before.allocated)
            else:
                self.assertIn("on the host", moved.note)
            for act in refused:
                with self.assertRaisesRegex(Refusal, "call restore first"):
                    act()
            for act in answered:
                act()
            engine.submit(lambda t=tag: engine.restore([t])).result()
        self.assertEqual(engine.health.released, ())
        after = score(), sample()
        torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
        self.assertEqual(after[1], before[1])
        engine.close()

    def test_what_each_tag_has_on_a_device_is_told_with_what_its_last_move_took(self):
        engine = engine_of(tiny("bfloat16"), "bfloat16")
        engine.submit(lambda: engine.forward_backward(batch_of(rows=3, columns=8), POLICY)).result()
        generate(engine, PROMPTS, 5)
        if engine.placement.is_cuda:
            for act in (engine.release, engine.restore):
                moved = engine.submit(lambda act=act: act(["weights"])).result()
                told = {each.tag: each for each in engine.submit(engine.tags).result()}["weights"]
                self.assertEqual(told.num_bytes, moved.num_bytes)
                self.assertLessEqual(told.release_seconds if act == engine.release else told.restore_seconds, moved.seconds)
        else:
            self.assertEqual({each.num_bytes for each in engine.tags() if each.tag != "cache"}, {0})
        with mock.patch.object(type(engine.placement), "is_cuda", True):
            told = {each.tag: each for each in engine.tags()}
        size = lambda tensors: sum(each.numel() * each.element_size() for each in tensors)  # noqa: E731
        model = engine.model
        self.assertGreaterEqual(told["weights"].num_bytes, size(model.parameters()) + size(model.buffers()))
        self.assertEqual(told["optimiser"].num_bytes, size(engine.optimiser.held()))
        self.assertGreater(told["optimiser"].num_bytes, 0)
        self.assertGreater(told["cache"].num_bytes, 0)
        self.assertEqual((told["cache"].release_seconds, told["cache"].restore_seconds), (0, 0))
        self.assertGreater(told["weights"].restore_seconds, 0)
        engine.close()

    def test_an_engine_that_is_not_loaded_has_nothing_on_its_device_until_it_is_restored(self):
        engine = Engine(tiny(), 4, place("auto", "float32"), is_loaded=False)
        self.assertEqual(engine.health.released, TAGS)
        self.assertTrue(all(each.device.type == "cpu" for each in engine.parameters.held()))
        engine.submit(lambda: engine.restore(TAGS)).result()
        self.assertTrue(all(each.device == engine.placement.device for each in engine.parameters.held()))
        self.assertEqual(len(generate(engine, PROMPTS, 5)), len(PROMPTS))
        engine.close()

    def test_health_is_told_while_a_job_runs(self):
        """EJ1: the next job waits for it."""
        engine = engine_of(tiny())
        ends = threading.Event()
        running = engine.submit(ends.wait)
        waiting = engine.submit(lambda: None)
        while engine.health.busy_seconds == 0:
            time.sleep(0.01)
        health = engine.health
        self.assertGreater(health.busy_seconds, 0)
        self.assertEqual(health.num_waiting, 1)
        self.assertFalse(waiting.done())
        ends.set()
        running.result()
        waiting.result()
        engine.close()


if __name__ == "__main__":
    unittest.main()
