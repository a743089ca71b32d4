"""What a call's messages have in columns: each entry once, bounded, and refused where columns disagree."""

import os
import random
import unittest
from array import array
from unittest import mock

from support import VOCABULARY, engine_of, tiny
from treadle_torch import messages
from treadle_torch._generated import engine_pb2 as pb
from treadle_torch.errors import Refusal
from treadle_torch.generation import Generation, Piece, Prompt, Reply, Sampling, Told
from treadle_torch.messages import read_prompts, reply_messages

SEED = int(os.environ.get("TREADLE_SEED", "1"))


def of(rows: pb.Rows) -> list[tuple[int, int, list[int], list[float]]]:
    tokens, logprobs = array("i"), array("f")
    tokens.frombytes(rows.tokens)
    logprobs.frombytes(rows.logprobs)
    entries, start = [], 0
    for index, attempt, length in zip(rows.indices, rows.attempts, rows.lengths, strict=True):
        numbers = tokens[start : start + length].tolist(), logprobs[start : start + length].tolist()
        entries.append((index, attempt, *numbers))
        start += length
    return entries


class Messages(unittest.TestCase):
    def test_a_step_is_told_of_once_whatever_ends_in_it(self):
        """TG6: of each call that has something to say, with what other calls end beside it."""
        draw = random.Random(SEED)
        engine = engine_of(tiny(), slots=5)
        generations = []
        for number in range(3):
            prompts = [Prompt(draw.randrange(99), [1 + draw.randrange(9)]) for _ in range(1 + draw.randrange(9))]
            sampling = Sampling(1 + draw.randrange(6), 1.0, frozenset([5]), 77, False)
            generations.append(Generation(sampling, prompts, progress_seconds=0.0 if number == 0 else None))
        steps = []
        model = engine._decoder._model
        act, read = model.step, model.read
        with (
            mock.patch.object(model, "step", side_effect=lambda *given: (steps.append(1), act(*given))[1]),
            mock.patch.object(model, "read", side_effect=lambda *given: (steps.append(1), read(*given))[1]),
        ):
            engine.submit(lambda: [engine.generate(each) for each in generations]).result()
            for at, generation in enumerate(generations):
                told = []
                while (one := generation.replies.get(timeout=60)) is not None:
                    told.append(one)
                indices = sorted(reply.index for one in told for reply in one.replies)
                self.assertEqual(indices, list(range(len(indices))), f"seed {SEED}")
                self.assertTrue(all(one.replies or one.pieces for one in told), f"seed {SEED}")
                self.assertLessEqual(len(told), len(steps), f"seed {SEED}")
                if at > 0:
                    self.assertTrue(all(not one.pieces for one in told))
        engine.close()
        engine = engine_of(tiny(), slots=7)
        generation = Generation(Sampling(4, 1.0, frozenset(), 77, False), [Prompt(key, [3]) for key in range(7)])
        engine.submit(lambda: engine.generate(generation)).result()
        self.assertEqual(len(generation.replies.get(timeout=60).replies), 7)
        self.assertIsNone(generation.replies.get(timeout=60))
        engine.close()

    def test_messages_are_bounded_and_have_each_entry_once_in_order(self):
        """TG7."""
        draw = random.Random(SEED)
        with mock.patch.object(messages, "REPLY_TOKENS", 20):
            for _ in range(50):
                sizes = [draw.choice([0, 1, 7, 20, 33]) for _ in range(draw.randrange(12))]
                numbers = lambda size: ([draw.randrange(99) for _ in range(size)], [-draw.randrange(9) / 4 for _ in range(size)])  # noqa: E731
                replies = [Reply(at, *numbers(size), draw.choice(["stop", "length", "abort"]), draw.random() < 0.5, at % 3) for at, size in enumerate(sizes)]
                pieces = [Piece(at, at % 2, draw.randrange(9), *numbers(size)) for at, size in enumerate(sizes)]
                sent = [pb.GenerateReply.FromString(each.SerializeToString()) for each in reply_messages(Told(replies, pieces, 6))]
                completions = [each.completions for each in sent if each.WhichOneof("kind") == "completions"]
                progress = [each.progress for each in sent if each.WhichOneof("kind") == "progress"]
                for each in [*completions, *progress]:
                    self.assertTrue(sum(each.rows.lengths) <= 20 or len(each.rows.lengths) == 1, f"seed {SEED}")
                got = [entry for each in completions for entry in of(each.rows)]
                self.assertEqual(got, [(one.index, one.attempt, one.tokens, one.logprobs) for one in replies], f"seed {SEED}")
                self.assertEqual([held for each in completions for held in each.held], [one.held for one in replies])
                reasons = [reason for each in completions for reason in each.finish_reasons]
                self.assertEqual(reasons, [messages.REASONS[one.reason] for one in replies])
                self.assertEqual({each.policy_version for each in completions} - {6}, set())
                got = [entry for each in progress for entry in of(each.rows)]
                self.assertEqual(got, [(one.index, one.attempt, one.tokens, one.logprobs) for one in pieces])
                self.assertEqual([start for each in progress for start in each.starts], [one.start for one in pieces])

    def test_prompts_whose_columns_disagree_are_refused(self):
        """TS3."""
        draw = random.Random(SEED)
        ints = lambda *numbers: array("i", numbers).tobytes()  # noqa: E731
        plain = {"keys": [7, 2**32 - 1], "lengths": [2, 1], "tokens": ints(1, 2, 3)}
        begun = {"begun_lengths": [0, 2], "num_appended": [0, 1], "begun_tokens": ints(4, 5), "begun_logprobs": array("f", [-1, 0]).tobytes()}
        self.assertEqual(read_prompts(pb.Prompts(**plain), VOCABULARY), [Prompt(7, [1, 2]), Prompt(2**32 - 1, [3])])
        both = read_prompts(pb.Prompts(**plain, **begun), VOCABULARY)
        self.assertEqual(both, [Prompt(7, [1, 2]), Prompt(2**32 - 1, [3], [4, 5], [-1.0, 0.0], 1)])
        for wrong in (
            {"keys": [7]},
            {"lengths": [2]},
            {"lengths": [2, 2]},
            {"tokens": ints(1, 2)},
            {"tokens": ints(1, 2, 3)[:-1]},
            {"tokens": ints(1, 2, VOCABULARY)},
            {"tokens": ints(1, -2, 3)},
            {"begun_lengths": [2]},
            {"begun_lengths": [1, 2]},
            {"begun_tokens": ints(4)},
            {"begun_tokens": ints(4, VOCABULARY)},
            {"begun_logprobs": b""},
            {"begun_logprobs": array("f", [-1, draw.choice([float("nan"), float("inf"), float("-inf")])]).tobytes()},
            {"num_appended": [1]},
        ):
            with self.subTest(wrong=wrong), self.assertRaises(Refusal):
                read_prompts(pb.Prompts(**{**plain, **begun, **wrong}), VOCABULARY)

    def test_a_call_has_as_many_prompts_as_it_announces(self):
        def read(announced: int, *sizes: int) -> int:
            parts = [pb.Prompts(keys=range(size), lengths=[1] * size, tokens=array("i", [1] * size).tobytes()) for size in sizes]
            requests = [pb.GenerateRequest(start=pb.Start(num_prompts=announced, max_tokens=4, temperature=1.0)), *(pb.GenerateRequest(prompts=each) for each in parts)]
            return messages.read_generation(iter(requests), 32, VOCABULARY, "one").unfinished

        self.assertEqual(read(3, 2, 1), 3)
        for sizes in [(2,), (2, 2), (4,)]:
            with self.subTest(sizes=sizes), self.assertRaises(Refusal):
                read(3, *sizes)


if __name__ == "__main__":
    unittest.main()
