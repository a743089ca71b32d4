"""Packing, chunks of logits, draws and steps: each against the plain way to compute the same."""

import importlib.util
import math
import os
import random
import subprocess
import sys
import unittest
from dataclasses import replace
from unittest import mock

import torch
from support import POLICY, batch_of, engine_of, tiny
from torch.utils._python_dispatch import TorchDispatchMode
from treadle_torch import draws, logprobs
from treadle_torch.attention import Packed
from treadle_torch.checkpoint import encode
from treadle_torch.decoding import _inverse
from treadle_torch.optimiser import AdamW, Step
from treadle_torch.packing import pack
from treadle_torch.parameters import Parameters

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}


class Packing(unittest.TestCase):
    def test_no_token_sees_another_sequence(self):
        """Attention of a packed row is that of its sequences alone, in values and gradients."""
        lengths = [5, 1, 3]
        draw = torch.Generator().manual_seed(1)
        query, key, value = (torch.randn(1, heads, 9, 4, generator=draw, requires_grad=True) for heads in (4, 2, 2))
        packed = Packed(lengths, torch.device("cpu")).attend(query, key, value, None)[0]
        parts = [each.split(lengths, 2) for each in (query, key, value)]
        alone = torch.cat([
            torch.nn.functional.scaled_dot_product_attention(*one, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
            for one in zip(*parts)
        ])
        torch.testing.assert_close(packed, alone)
        slope = torch.randn(9, 4, 4, generator=draw)
        for one, other in zip(*(torch.autograd.grad(each, (query, key, value), slope) for each in (packed, alone))):
            torch.testing.assert_close(one, other)

    def test_rows_are_cut_to_what_counts_and_share_passes_under_the_budget(self):
        wanted = torch.zeros(4, 6, dtype=torch.bool)
        wanted[0, 5] = wanted[2, 1] = wanted[3, 3] = wanted[3, 0] = True
        tokens = torch.arange(24).view(4, 6)
        passes = pack(tokens, wanted, 6, torch.device("cpu"))
        self.assertEqual([one.tokens.tolist() for one in passes], [[0, 1, 2, 3, 4], [18, 19, 20, 12]])
        self.assertEqual([(one.rows.tolist(), one.columns.tolist(), one.places.tolist()) for one in passes], [([0], [5], [4]), ([3, 2], [3, 1], [2, 3])])

    def test_a_packed_batch_has_the_logprobs_and_gradients_of_its_rows(self):
        for dtype, close in (("float32", 1e-5), ("bfloat16", 3e-2)):
            engine = engine_of(tiny(dtype), dtype)
            batch = batch_of(rows=5, columns=12)
            rows = [{name: each[row : row + 1] for name, each in batch.items()} for row in range(5)]
            together = engine.submit(lambda: engine.score(batch, "logprobs")).result()
            apart = torch.cat([engine.submit(lambda r=row: engine.score(r, "logprobs")).result() for row in rows])
            torch.testing.assert_close(together, apart, rtol=0, atol=close * 3)
            everywhere = {name: each for name, each in batch.items() if name != "weights"}
            unasked = engine.submit(lambda b=everywhere: engine.score(b, "logprobs")).result()
            where = batch["weights"] != 0
            where[:, 0] = False
            torch.testing.assert_close(together[where], unasked[where], rtol=0, atol=close * 3)
            self.assertEqual(together[~where].count_nonzero(), 0)
            self.assertEqual(unasked[:, 1:].count_nonzero(), unasked[:, 1:].numel())
            gradients = []
            for batches in ([batch], rows):
                engine.submit(engine.parameters.zero).result()
                for one in batches:
                    engine.submit(lambda b=one: engine.forward_backward(b, POLICY)).result()
                gradients.append(torch.cat([each.flatten() for each in engine.parameters.gradients]))
            self.assertLess((gradients[0] - gradients[1]).norm() / gradients[1].norm(), close)
            engine.close()


class Logprobs(unittest.TestCase):
    def test_chunks_kept_or_made_again_are_log_softmax(self):
        draw = torch.Generator().manual_seed(2)
        hidden, head = (torch.randn(shape, generator=draw, requires_grad=True) for shape in ((11, 6), (13, 6)))
        tokens = torch.randint(13, (11,), generator=draw)
        slopes = torch.randn(2, 11, generator=draw)
        for temperatures in (None, torch.rand(11, generator=draw) + 0.5):
            logits = hidden @ head.T if temperatures is None else hidden @ head.T / temperatures[:, None]
            plain = logits.log_softmax(-1)
            expected = plain.gather(1, tokens[:, None])[:, 0], -(plain.exp() * plain).sum(-1)
            for kept_bytes in (2**20, 0):
                with mock.patch.multiple(logprobs, CHUNK_LOGITS=13 * 4, KEPT_BYTES=kept_bytes, CACHED_LOGITS=13 * 3 // torch.get_num_threads()):
                    for used in ([0], [1], [0, 1]):
                        actual = logprobs.chosen_logprobs(hidden, head, tokens, temperatures)
                        own, other = (
                            torch.autograd.grad(sum((made[each] * slopes[each]).sum() for each in used), (hidden, head), retain_graph=True)
                            for made in (actual, expected)
                        )
                        torch.testing.assert_close((*actual, *own), (*expected, *other), rtol=1e-4, atol=1e-5)

    def test_what_is_measured_is_that_of_float64_within_rounding(self):
        for rows, vocabulary, deviation in ((40, 3, 1.0), (9, 5000, 0.1), (5, 4001, 8.0)):
            logits = deviation * torch.randn(rows, vocabulary)
            logits[0, :-1] = -math.inf  # what cannot be drawn has no part in it
            tokens = torch.randint(vocabulary, (rows,))
            tokens[0] = vocabulary - 1
            for temperatures in (None, torch.rand(rows) + 0.5):
                exact = logits.double() if temperatures is None else logits.double() / temperatures[:, None]
                plain = exact.log_softmax(-1)
                chosen = [each.gather(1, tokens[:, None])[:, 0] for each in (plain, exact)]
                expected = chosen[0], torch.special.entr(plain.exp()).sum(-1), chosen[1] - chosen[0]
                for one, other in zip(logprobs.Plain.measure(logits, tokens, temperatures), expected):
                    torch.testing.assert_close(one.double(), other, rtol=4e-7, atol=2e-6)

    def test_what_cannot_be_chosen_has_no_number_and_no_slope(self):
        logits, tokens = torch.tensor([[0.0, 1.0, -math.inf, 2.0]] * 2), torch.tensor([2, 1])
        measured = logprobs.Plain.measure(logits, tokens, None)
        self.assertEqual(measured[0][0], -math.inf)
        for slope in (1.0, 100.0, 1e6):
            given = torch.full((2,), slope)
            slopes = logprobs.Plain.slopes_(logits.clone(), tokens, None, measured[1], measured[2], None, given)
            self.assertTrue(slopes.isfinite().all())
            self.assertTrue((slopes[:, 2] == 0).all())
            self.assertLess(slopes.double().sum(-1).abs().max(), 1e-5 * slope)
        self.assertEqual(logprobs._ChosenLogprobs.backward(None, None, None), (None, None, None, None))

    def test_on_a_processor_nothing_as_large_as_the_logits_is_made_beside_them(self):
        """What is read some ten times stays in a cache."""
        made: list[int] = []

        class Looking(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, given=(), options=None):
                result = operation(*given, **(options or {}))
                own = {each.untyped_storage().data_ptr() for each in given if isinstance(each, torch.Tensor)}
                if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in own:
                    made.append(result.numel())
                return result

        rows, vocabulary = 12, 50
        logits, tokens, temperatures = torch.randn(rows, vocabulary), torch.randint(vocabulary, (rows,)), torch.rand(rows) + 0.5
        with mock.patch.object(logprobs, "CACHED_LOGITS", 3 * vocabulary // torch.get_num_threads()), Looking():
            measured = logprobs.Plain.measure(logits, tokens, temperatures)
            logprobs.Plain.slopes_(logits, tokens, temperatures, *measured[1:], measured[0], measured[1])
        self.assertGreater(max(made), 0)
        self.assertLessEqual(max(made), 3 * vocabulary)

    @unittest.skipIf(importlib.util.find_spec("triton") is None, "needs Triton, which builds of PyTorch for CPUs alone do not bring")
    def test_the_kernels_compute_what_pytorch_does(self):
        """Where there is no device, Triton's interpreter runs them, in a process of its own: it is chosen once."""
        sizes = ((5, 9001), (3, 16), (1, 4096), (4, 4097), (2, 1), (40, 97))
        cases = [(*size, random.randrange(2**32)) for size in sizes]
        code = "import torch; from treadle_torch import logprobs, logprobs_kernel as kernels; "
        code += f"print([case for case in {cases} if logprobs.differs(kernels, torch.device('{DEVICE}'), *case)])"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **INTERPRETED}
        said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True, capture_output=True, text=True)
        self.assertEqual(said.stdout.strip(), "[]", "rows, vocabulary and seed")

    def test_a_kernel_that_is_off_is_noticed(self):
        class Off(logprobs.Plain):
            @staticmethod
            def slopes_(logits, tokens, temperatures, entropies, normalisers, of_logprobs, of_entropies):
                return logprobs.Plain.slopes_(logits, tokens, temperatures, entropies + 0.01, normalisers, of_logprobs, of_entropies)

        self.assertFalse(logprobs.differs(logprobs.Plain, torch.device("cpu")))
        self.assertTrue(logprobs.differs(Off, torch.device("cpu")))

    def test_kernels_are_given_slopes_and_tokens_that_lie_side_by_side(self):
        """Autograd hands on the slope of a sum as one number for all."""
        given: list[torch.Tensor] = []

        class Looking(logprobs.Plain):
            @staticmethod
            def slopes_(*arrays):
                given.extend(each for each in arrays[1:] if each is not None)
                return logprobs.Plain.slopes_(*arrays)

        hidden, head = (torch.randn(shape, requires_grad=True) for shape in ((6, 4), (9, 4)))
        tokens, temperatures = torch.randint(9, (6, 2))[:, 0], torch.ones(1).expand(6)
        with mock.patch.object(logprobs, "_way", lambda logits: Looking):
            sum(each.sum() for each in logprobs.chosen_logprobs(hidden, head, tokens, temperatures)).backward()
        self.assertEqual(len(given), 6)
        self.assertEqual({each.stride() for each in given}, {(1,)})

    def test_nothing_is_kept_for_a_backward_pass_that_never_comes(self):
        hidden, head = (torch.randn(shape, requires_grad=True) for shape in ((6, 4), (9, 4)))
        given: list[tuple[bool, ...]] = []
        apply = logprobs._ChosenLogprobs.apply
        with mock.patch.object(logprobs._ChosenLogprobs, "apply", lambda *each: given.append((each[0].requires_grad, each[1].requires_grad)) or apply(*each)):
            with torch.no_grad():
                logprobs.chosen_logprobs(hidden, head, torch.zeros(6, dtype=torch.long), None)
            logprobs.chosen_logprobs(hidden, head, torch.zeros(6, dtype=torch.long), None)
        self.assertEqual(given, [(False, False), (True, True)])

    @unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
    def test_on_a_device_they_are_used(self):
        self.assertIsNot(logprobs._kernels(), logprobs.Plain)


class Draws(unittest.TestCase):
    def test_draws_are_those_of_the_embedded_engine(self):
        """What `mix` of packages/engines/src/random.ts says of the same words."""
        words = torch.tensor([(0, 0, 0), (9, 3, 1), (2**32 - 1, 7, 255), (12345, 2**32 - 1, 70000)])
        streams = torch.tensor([draws.begun(seed, key) for seed, key in words[:, :2].tolist()])
        mixed = (draws.uniform(streams, words[:, 2]) * 2**32 - 0.5).long()
        self.assertEqual(mixed.tolist(), [1839715275, 3617765547, 3541971585, 675095447])

    def test_a_large_vocabulary_is_drawn_from_by_blocks_as_from_its_sums(self):
        draw = torch.Generator().manual_seed(4)
        for vocabulary in (7, 1024, 1500, 1664, 5000):
            exact = torch.rand(50, vocabulary, generator=draw, dtype=torch.float64).pow(8).softmax(-1)
            uniform = torch.rand(50, generator=draw, dtype=torch.float64)
            for probabilities in (exact, exact.float()):
                sums = probabilities.double().cumsum(-1)
                expected = torch.searchsorted(sums, (uniform * sums[:, -1])[:, None], right=True)[:, 0]
                self.assertTrue(torch.equal(_inverse(probabilities, uniform), expected))


class Steps(unittest.TestCase):
    def test_the_fused_step_is_the_exact_one_within_rounding(self):
        step = Step(0.01, 0.5, 1.0, 0.9, 0.99, 1e-8, 0.1)
        results = []
        for is_fused in (False, True):
            torch.manual_seed(6)
            named = [("a", torch.nn.Parameter(torch.randn(5, 3))), ("b", torch.nn.Parameter(torch.randn(4)))]
            optimiser = AdamW(Parameters(named))
            # One has nothing to weigh.
            for one in (step, step, replace(step, scale=0.0), step):
                gradients = [torch.randn_like(each) for _, each in named]
                optimiser.parameters.gradients = gradients
                if is_fused:
                    norm = math.sqrt(sum(each.square().sum().item() for each in gradients)) * one.scale
                    with torch.no_grad():
                        self.assertGreater(optimiser.bound(one, min(norm, 1.0)), max(each.abs().max() for _, each in named))
                        optimiser.step_fused(gradients, one.scale * min(1.0, 1.0 / max(norm, 1e-30)), one)
                    optimiser.steps += 1
                else:
                    optimiser.bound = lambda *_: math.inf
                    optimiser.step(one)
            results.append([each.detach() for _, each in named] + [each for moments in optimiser.moments() for each in moments])
        for one, other in zip(*results):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)

    def test_an_exact_step_has_the_same_bits_by_pieces_and_whole_and_is_taken_where_the_kernel_would_mix_up_what_lies_otherwise(self):
        step = Step(0.01, 0.5, 1.0, 0.9, 0.99, 1e-8, 0.1)
        results = []
        for is_whole, is_sure in ((False, False), (True, False), (True, True), (False, True)):
            draw = torch.Generator().manual_seed(8)
            # More than a piece, and not a multiple of one.
            named = [("a", torch.nn.Parameter(torch.randn(150, 211, generator=draw))), ("b", torch.nn.Parameter(torch.randn(7, generator=draw)))]
            if is_whole:
                # Of other strides, a flat view of it does not exist.
                named[0][1].data = named[0][1].data.T.contiguous().T
            optimiser = AdamW(Parameters(named))
            if not is_sure:
                optimiser.bound = lambda *_: math.inf
            for _ in range(3):
                optimiser.parameters.gradients = [torch.randn(each.shape, generator=draw) for _, each in named]
                optimiser.step(step)
            results.append([each.detach() for _, each in named] + [each for moments in optimiser.moments() for each in moments])
        exact, *others, fused = results
        for other in others:
            self.assertTrue(all(torch.equal(*pair) for pair in zip(exact, other)))
        self.assertFalse(all(torch.equal(*pair) for pair in zip(exact, fused)))
        for pair in zip(exact, fused):
            torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-6)

    def test_bfloat16_keeps_what_is_trained_in_float32(self):
        """Steps that are too small for bfloat16 add up."""
        engine = engine_of(tiny("bfloat16"), "bfloat16")
        before = [each.detach().clone() for each in engine.parameters.used()]
        self.assertTrue(all(each.dtype == torch.bfloat16 for each in before))
        exact = [each.float() for each in before]
        for _ in range(3):
            engine.submit(lambda: engine.forward_backward(batch_of(rows=3, columns=8), POLICY)).result()
            engine.submit(lambda: engine.optim_step(Step(1e-5, 1.0, math.inf, 0.9, 0.99, 1e-8, 0.0))).result()
        masters = engine.parameters.masters()
        self.assertTrue(any(not torch.equal(one, other) for one, other in zip(masters, exact)))
        for computing, master in zip(engine.parameters.used(), masters):
            self.assertTrue(torch.equal(computing, master.bfloat16()))
        checkpoint = b"".join(engine.submit(engine.save).result().stream())
        other = engine_of(tiny("bfloat16"), "bfloat16")
        other.submit(lambda: other.load_checkpoint(checkpoint)).result()
        self.assertEqual(other.submit(lambda: other.read("weights")).result(), encode(masters))
        for each in (engine, other):
            each.close()


if __name__ == "__main__":
    unittest.main()
