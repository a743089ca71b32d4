"""A device whose memory runs out, at moments that are drawn: what is told, and what is left."""

import os
import random
import unittest
from unittest import mock

import torch
from support import POLICY, batch_of, engine_of, generate, tiny
from treadle_torch.device import Placement, place
from treadle_torch.engine import TAGS, Engine
from treadle_torch.errors import Refusal
from treadle_torch.offload import Offload
from treadle_torch.optimiser import Step
from treadle_torch.room import GIB

SEED = int(os.environ.get("TREADLE_SEED") or 0)
STEP = Step(0.01, 1.0, 1.0, 0.9, 0.95, 1e-8, 0.1)
PROMPTS = [(0, [1, 2, 3])]


def out_of_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Waking(unittest.TestCase):
    def test_a_tag_whose_memory_runs_out_goes_back_whole(self):
        """DRM2: whichever of its tensors has no room."""
        move = torch.Tensor.to
        for failing in range(5):
            tensors = [torch.nn.Parameter(torch.full((3,), float(each))) for each in range(4)]
            places = [each.data_ptr() for each in tensors]
            moved = []

            def to(tensor, *_, **__):
                if len(moved) == failing:
                    out_of_memory()
                moved.append(tensor)
                return move(tensor, "cpu", copy=True)

            offload = Offload(Placement(torch.device("cuda", 0), torch.float32))
            with mock.patch.object(torch.Tensor, "to", to):
                if failing < len(tensors):
                    with self.assertRaises(torch.OutOfMemoryError):
                        offload.restore(tensors)
                else:
                    self.assertEqual(offload.restore(tensors), 4 * 3 * 4)
            stayed = [each.data_ptr() for each in tensors]
            self.assertEqual(stayed == places, failing < len(tensors))
            self.assertEqual([each[0].item() for each in tensors], [0, 1, 2, 3])

    def test_a_restore_is_all_or_nothing_and_tried_again_is_whole(self):
        """DRM2: at drawn tags, of drawn tags."""
        draw = random.Random(SEED)
        engine = engine_of(tiny())
        batch = batch_of(rows=3, columns=8)
        score = lambda: engine.submit(lambda: engine.score(batch, "logprobs")).result()  # noqa: E731
        before = score()
        for _ in range(20):
            leaving = draw.sample(TAGS, draw.randint(1, 3))
            engine.submit(lambda t=leaving: engine.release(t)).result()
            asked = draw.sample(leaving, draw.randint(1, len(leaving)))
            failing = draw.choice([tag for tag in asked if tag != "cache"] or [None])
            if failing is not None:
                released = engine.health.released
                with mock.patch.object(engine._offload[failing], "restore", out_of_memory):
                    with self.assertRaisesRegex(Refusal, "it needs .* GiB .* are free.*Tried to allocate.*; see what else") as refused:
                        engine.submit(lambda t=asked: engine.restore(t)).result()
                self.assertEqual(refused.exception.code, "device.out-of-memory", f"seed {SEED}")
                self.assertEqual(engine.health.released, released, f"seed {SEED}")
            if "weights" in engine.health.released:
                with self.assertRaisesRegex(Refusal, "call restore first"):
                    score()
            engine.submit(lambda: engine.restore(TAGS)).result()
            self.assertEqual(engine.health.released, ())
            torch.testing.assert_close(score(), before, rtol=0, atol=0)
        engine.close()

    def test_a_restore_that_fails_otherwise_leaves_its_tags_to_the_next(self):
        engine = engine_of(tiny())
        score = lambda: engine.submit(lambda: engine.score(batch_of(rows=2, columns=6), "logprobs")).result()  # noqa: E731
        before = score()
        engine.submit(lambda: engine.release(TAGS)).result()
        for failing in ("weights", "optimiser"):
            with mock.patch.object(engine._offload[failing], "restore", side_effect=RuntimeError("the driver fails")):
                with self.assertRaisesRegex(RuntimeError, "the driver fails"):
                    engine.submit(lambda: engine.restore(TAGS)).result()
            with self.assertRaisesRegex(Refusal, "call restore first"):
                score()
        engine.submit(lambda: engine.restore(TAGS)).result()
        torch.testing.assert_close(score(), before, rtol=0, atol=0)
        engine.close()

    def test_what_cannot_fit_is_refused_with_the_arithmetic_before_anything_moves(self):
        """DRM1."""
        for use, dtype, each in (
            ("training", "float32", {"weights": 4, "gradients and moments": 12}),
            ("training", "bfloat16", {"weights": 2, "what is trained, in float32,": 4, "gradients and moments": 12}),
            ("scoring", "float32", {"weights": 4}),
            ("generation", "bfloat16", {"weights": 2, "cache of 4 slots": 2 * 2 * 32 * 2}),
        ):
            engine = Engine(tiny(dtype), 4, place("cpu", dtype), is_loaded=False, use=use)
            buffers = sum(one.numel() * one.element_size() for one in engine.model.buffers())
            count = engine.parameters.num_elements
            counts = {"cache of 4 slots": 4 * 25, "weights": count + buffers // each["weights"]}
            needed = sum(size * counts.get(what, count) for what, size in each.items())
            with mock.patch("treadle_torch.room.free_bytes", return_value=needed - 1):
                with mock.patch.object(Offload, "restore", side_effect=AssertionError("it has moved")):
                    with self.assertRaises(Refusal) as refused:
                        engine.submit(lambda: engine.restore(TAGS)).result()  # noqa: B023
            said = str(refused.exception)
            self.assertEqual(refused.exception.code, "device.out-of-memory")
            self.assertIn(f"it needs {needed / GIB:.3g} GiB", said)
            for what, size in each.items():
                self.assertIn(f"({size} bytes × {counts.get(what, count)} ", said.split(f"{what} ", 1)[1])
            self.assertEqual(engine.health.released, TAGS)
            with mock.patch("treadle_torch.room.free_bytes", return_value=needed):
                engine.submit(lambda: engine.restore(TAGS)).result()
            self.assertEqual(engine.health.released, ())
            if use == "generation":
                generate(engine, PROMPTS, 3)
                self.assertEqual(engine._decoder.cache_bytes, each["cache of 4 slots"] * counts["cache of 4 slots"])
            engine.close()


class Backward(unittest.TestCase):
    def test_a_batch_whose_memory_runs_out_leaves_no_gradient(self):
        """At a drawn parameter of a drawn pass, in the forward pass or in the backward one."""
        draw = random.Random(SEED)
        batch = batch_of(rows=4, columns=10)
        with mock.patch("treadle_torch.engine.PASS_TOKENS", 12):
            engine, other = engine_of(tiny()), engine_of(tiny())
            train = lambda one: one.submit(lambda: one.forward_backward(batch, POLICY)).result()  # noqa: E731
            for _ in range(12):
                collect, limit, calls = engine.parameters._collect, draw.randrange(1, 40), []

                def failing(*given, limit=limit, collect=collect, calls=calls):
                    calls.append(given)
                    if len(calls) == limit:
                        out_of_memory()
                    collect(*given)

                where = draw.choice(["_collect", "_predict"])
                if where == "_predict":
                    predict, limit = engine._predict, draw.randrange(1, 3)

                    def failing(*given, limit=limit, calls=calls, predict=predict):  # noqa: F811
                        calls.append(given)
                        return out_of_memory() if len(calls) == limit else predict(*given)

                if draw.random() < 0.5:
                    train(engine)  # what was summed up before it is of the same step
                with mock.patch.object(engine.parameters if where == "_collect" else engine, where, failing):
                    with self.assertRaisesRegex(Refusal, "; set engine.checkpointActivations") as refused:
                        train(engine)
                self.assertEqual(refused.exception.code, "device.out-of-memory")
                self.assertEqual(engine.parameters.gradients, [None] * len(engine.parameters.layout), f"seed {SEED}")
                self.assertTrue(all(each.grad is None for each in engine.model.parameters()))
                train(engine)
                train(other)
                for own, expected in zip(engine.parameters.gradients, other.parameters.gradients, strict=True):
                    torch.testing.assert_close(own, expected, rtol=0, atol=0)
                for one in (engine, other):
                    one.submit(lambda one=one: one.optim_step(STEP)).result()
            engine.close()
            other.close()


if __name__ == "__main__":
    unittest.main()
