"""Completions that have begun elsewhere, and what is told of those that go on."""

import dataclasses
import os
import random
import unittest
from unittest import mock

from support import CONTEXT, engine_of, tiny
from treadle_torch.clients import OWNER
from treadle_torch.generation import Generation, Piece, Prompt, Reply, Sampling

SEED = int(os.environ.get("TREADLE_SEED", "1"))
PROMPTS = [(key, [1 + (key * place) % 7 for place in range(1, 2 + key % 5)]) for key in range(11)]
SAMPLING = Sampling(15, 1.0, frozenset([5]), 77, False)


def made(engine, prompts: list[Prompt], progress_seconds=None, sampling=SAMPLING) -> tuple[list[Reply], list[Piece]]:
    generation = Generation(sampling, prompts, progress_seconds=progress_seconds)
    engine.submit(lambda: engine.generate(generation)).result()
    replies, pieces = {}, []
    while (told := generation.replies.get()) is not None:
        pieces += told.pieces
        replies.update({reply.index: reply for reply in told.replies})
    return [replies[index] for index in range(len(prompts))], pieces


class Begun(unittest.TestCase):
    def test_what_has_begun_elsewhere_goes_on_as_there_and_none_of_it_is_chosen_again(self):
        """TG4: cut anywhere, in few slots or many."""
        draw = random.Random(SEED)
        for slots in (1, 4, 16):
            engine = engine_of(tiny(), slots=slots)
            whole, _ = made(engine, [Prompt(*one) for one in PROMPTS])
            cuts = [draw.randrange(len(one.tokens)) for one in whole]
            begun = [Prompt(*one, each.tokens[:cut], each.logprobs[:cut]) for one, each, cut in zip(PROMPTS, whole, cuts)]
            model = engine._decoder._model
            read, readings = model.read, []
            with mock.patch.object(model, "read", side_effect=lambda given: (readings.extend(given), read(given))[1]):
                rest, _ = made(engine, begun)
            for one, other in zip(rest, whole):
                self.assertEqual((one.tokens, one.reason), (other.tokens, other.reason), f"seed {SEED}")
                for got, expected in zip(one.logprobs, other.logprobs):
                    self.assertAlmostEqual(got, expected, places=4)
            # What has begun is read once, with its prompt, and the first token that is chosen follows it.
            for one in begun:
                if len(one.tokens) + len(one.begun) == 1:
                    continue
                had = [each.number for each in readings if each.position == 0 and each.tokens == one.tokens + one.begun]
                self.assertIn(len(one.begun), had, f"seed {SEED}")
            self.assertEqual(len(readings), sum(len(one.tokens) + len(one.begun) > 1 for one in begun))
            engine.close()

    def test_a_held_sequence_keeps_what_it_has_read_until_it_is_answered_for(self):
        """TG3: an answer for another attempt changes nothing; what follows the right one is what follows the same text elsewhere."""
        engine = engine_of(tiny(), slots=16)
        extensible = dataclasses.replace(SAMPLING, extensible=True)
        generation = Generation(extensible, [Prompt(*one) for one in PROMPTS])
        engine.submit(lambda: engine.generate(generation)).result()
        decoder = engine._decoder
        answer = lambda reply, attempt, tokens: engine.submit(  # noqa: E731
            lambda: decoder.extend(generation, reply.index, attempt, tokens, engine.policy_version)
        ).result()
        answered, replies = {}, {}
        while (told := generation.replies.get()) is not None:
            for reply in told.replies:
                if not reply.held or reply.index in answered:
                    replies[reply.index] = reply
                    if reply.held:
                        answer(reply, reply.attempt, None)
                    continue
                answer(reply, reply.attempt + 1, [1])
                self.assertTrue(any(one is not None and one.held and one.index == reply.index for one in decoder._occupants))
                answer(reply, reply.attempt, [2, 3])
                answered[reply.index] = reply.tokens + [2, 3]
        self.assertGreater(len(answered), 0)
        begun = [Prompt(*PROMPTS[at], tokens, [0.0] * len(tokens)) for at, tokens in answered.items()]
        longer = dataclasses.replace(SAMPLING, max_tokens=SAMPLING.max_tokens + 2)
        for expected, at in zip(made(engine, begun, sampling=longer)[0], answered):
            self.assertEqual(replies[at].tokens, expected.tokens)
        engine.close()

    def test_pieces_are_the_completion_without_its_end(self):
        """TG5: after each token, they are all of it but the last, each once."""
        engine = engine_of(tiny(), slots=4)
        begun = [Prompt(*one) for one in PROMPTS]
        whole, none = made(engine, begun)
        self.assertEqual(none, [])
        replies, pieces = made(engine, begun, progress_seconds=0.0)
        for index, reply in enumerate(replies):
            told = [each for each in pieces if each.index == index]
            tokens = []
            for each in told:
                self.assertEqual((each.start, each.attempt), (len(tokens), 0))
                tokens += each.tokens
            self.assertEqual(tokens, reply.tokens[:-1])
            self.assertEqual(sum((each.logprobs for each in told), []), reply.logprobs[:-1])
            self.assertEqual(reply.tokens, whole[index].tokens)
        rest, pieces = made(engine, [Prompt(*PROMPTS[0], whole[0].tokens[:-1], whole[0].logprobs[:-1])], progress_seconds=0.0)
        self.assertEqual((rest[0].tokens, pieces), (whole[0].tokens, []))
        _, pieces = made(engine, begun, progress_seconds=3600.0)
        self.assertLessEqual(len(pieces), 4)
        engine.close()

    def test_weights_that_change_take_what_has_begun_with_them(self):
        """TG2: also of what waits for a slot."""
        engine = engine_of(tiny(), slots=1)
        whole, _ = made(engine, [Prompt(*one) for one in PROMPTS[:4]])
        engine.submit(lambda: engine.pause(OWNER)).result()
        others = [[1 + token % 4] for token in range(4)]
        generation = Generation(SAMPLING, [Prompt(*one, begun, [0.0], 1) for one, begun in zip(PROMPTS, others)])
        engine.submit(lambda: engine.generate(generation)).result()
        engine.submit(engine._decoder.restart).result()
        engine.submit(lambda: engine.resume(OWNER)).result()
        replies = {}
        while (told := generation.replies.get()) is not None:
            replies.update({reply.index: reply.tokens for reply in told.replies})
        self.assertEqual([replies[index] for index in range(4)], [one.tokens for one in whole])
        self.assertLess(max(len(one.tokens) for one in whole), CONTEXT)
        engine.close()

    def test_what_comes_under_another_version_than_it_counts_on_begins_again(self):
        """TG2: as where weights were loaded between the call and its arrival; what has not begun is no other."""
        engine = engine_of(tiny(), slots=4)
        whole, _ = made(engine, [Prompt(*one) for one in PROMPTS])
        long = [at for at, one in enumerate(whole) if len(one.tokens) > 2]
        wrong = [Prompt(*PROMPTS[at], [1 + token % 4 for token in whole[at].tokens[:2]], [0.0, 0.0]) for at in long]
        for expected in (engine.policy_version, engine.policy_version + 1):
            generation = Generation(SAMPLING, wrong, expected_version=expected)
            engine.submit(lambda: engine.generate(generation)).result()
            replies = {}
            while (told := generation.replies.get()) is not None:
                replies.update({reply.index: reply for reply in told.replies})
            goes_on = expected == engine.policy_version
            for index, at in enumerate(long):
                self.assertEqual(replies[index].attempt, 0 if goes_on else 1)
                self.assertEqual(replies[index].tokens == whole[at].tokens, wrong[index].begun == whole[at].tokens[:2] or not goes_on)
        engine.close()


if __name__ == "__main__":
    unittest.main()
