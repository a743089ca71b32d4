/** When a process counts as frozen: after two questions in a row without an answer, while somebody waits. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { Watch } from "../src/torch/watch.ts";

/** Of a process that answers as listed; nobody waits any more once the list is at its end. */
async function watched(answers: readonly boolean[]): Promise<{ asked: number; isFrozen: boolean }> {
  let asked = 0;
  return new Promise((resolve) => {
    const watch = new Watch({
      silenceMs: 2,
      ask: async () => {
        const answer = answers[asked++] as boolean;
        if (asked === answers.length) {
          end();
          // Also after the question that is on its way.
          setTimeout(() => resolve({ asked, isFrozen: false }), 20);
        }
        return answer;
      },
      frozen: () => resolve({ asked, isFrozen: true }),
    });
    const end = watch.begin();
  });
}

test("HW1: it is frozen at the second miss in a row, and one miss is forgiven", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.boolean(), { minLength: 1, maxLength: 8 }), async (answers) => {
      const second = answers.findIndex((answer, at) => at > 0 && !answer && !answers[at - 1]);
      const expected = second < 0 ? { asked: answers.length, isFrozen: false } : { asked: second + 1, isFrozen: true };
      expect(await watched(answers)).toEqual(expected);
    }),
    { numRuns: 60 },
  );
});

test("HW2: nothing is asked while nobody waits, and again when somebody does", async () => {
  let asked = 0;
  let answered = () => {};
  const watch = new Watch({
    silenceMs: 2,
    ask: async () => {
      asked++;
      answered();
      return true;
    },
    frozen: () => expect.unreachable("it answers"),
  });
  for (let round = 0; round < 3; round++) {
    const next = new Promise<void>((resolve) => {
      answered = resolve;
    });
    const ends = [watch.begin(), watch.begin()];
    ends[0]?.();
    ends[0]?.(); // counts once
    await next;
    ends[1]?.();
    await new Promise((resolve) => setTimeout(resolve, 20));
    const before = asked;
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(asked).toBe(before);
  }
});
