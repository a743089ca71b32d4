import type { Sink, Source } from "@treadle/runtime";
import fc from "fast-check";
import { expect, test } from "vitest";
import { Exchange } from "../src/simulator/exchange.ts";
import type { Action, Observation } from "../src/simulator/items.ts";

const floats = Float32Array.of(0);
const flags = Uint8Array.of(0);
const shownOf = (firstEnvironment: number) => ({ firstEnvironment, numEnvironments: 1, observations: floats });
const transition = {
  ...{ observations: floats, finalObservations: floats, rewards: floats },
  ...{ terminated: flags, truncated: flags },
};

const answerTo = ({ simulator, stage, attempt, time }: Observation): Action => ({
  ...{ simulator, stage, attempt, time },
  kind: "act",
  policyVersion: 0,
  actions: Float32Array.of(time),
});

function exchangeOf(stages: number, onShown: (observation: Observation) => void, answers: Action[]) {
  const observations = {
    put: async (observation: Observation) => onShown(observation),
  } as unknown as Sink<Observation>;
  const actions = {
    take: async () => (answers.length > 0 ? answers.splice(0, 1) : undefined),
  } as unknown as Source<Action>;
  const shown = Array.from({ length: stages }, (_, stage) => shownOf(stage));
  return new Exchange({ ...{ actions, observations, simulator: 3, policy: 0, horizon: 9 }, stages: shown });
}

test("SE1, SE3: every attempt has a name of its own in all stages, and whatever answers come late or twice, the one to what a stage has shown last counts, once", async () => {
  // One turn: which stage's answer comes next, and which answers to earlier observations come before it.
  const turn = fc.record({ stage: fc.nat(9), late: fc.array(fc.nat(40), { maxLength: 4 }) });
  const attempts = fc.array(fc.array(turn, { maxLength: 8 }), { minLength: 1, maxLength: 4 });
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 3 }), attempts, async (stages, all) => {
      const shown: Observation[] = [];
      const answers: Action[] = [];
      const exchange = exchangeOf(stages, (observation) => shown.push(observation), answers);
      const names: string[] = [];
      for (const turns of all) {
        exchange.begin();
        const first = shown.slice(-stages);
        const { attempt } = first[0] as Observation;
        expect(first).toMatchObject(
          Array.from({ length: stages }, (_, stage) => ({ stage, stages, attempt, time: 0, firstEnvironment: stage })),
        );
        names.push(attempt);
        const last = [...first];
        for (const { stage: drawn, late } of turns) {
          const stage = drawn % stages;
          const current = last[stage] as Observation;
          const before = shown.filter((observation) => !last.includes(observation));
          for (const at of late)
            if (before.length > 0) answers.push(answerTo(before[at % before.length] as Observation));
          answers.push(answerTo(current));
          expect(await exchange.answer()).toMatchObject({ stage, attempt, time: current.time, simulator: 3 });
          // Delivered once more, it is an answer to nothing.
          answers.push(answerTo(current));
          expect(await exchange.answer()).toBeUndefined();
          exchange.goOn(stage, transition);
          last[stage] = shown.at(-1) as Observation;
          expect(last[stage]).toMatchObject({ stage, attempt, time: current.time + 1 });
        }
      }
      expect(new Set(names).size).toBe(all.length);
    }),
    { numRuns: 50 },
  );
});

test("SE4: answers are taken while what was shown waits for room", async () => {
  const shown: Observation[] = [];
  const sink = {
    put: (observation: Observation) => {
      shown.push(observation);
      return new Promise(() => {});
    },
  } as unknown as Sink<Observation>;
  const source = { take: async () => [answerTo(shown.at(-1) as Observation)] } as unknown as Source<Action>;
  const options = { actions: source, observations: sink, simulator: 3, policy: 0, horizon: 9 };
  const exchange = new Exchange({ ...options, stages: [0, 1, 2].map(shownOf) });
  exchange.begin();
  expect(shown.map(({ stage }) => stage)).toEqual([0, 1, 2]);
  for (let time = 0; time < 3; time++) {
    expect(await exchange.answer()).toMatchObject({ stage: 2, time });
    exchange.goOn(2, transition);
  }
});

test.each(["before", "while"])(
  "what cannot be shown fails whoever waits for its answer (%s it waits)",
  async (when) => {
    let refuse = () => {};
    const sink = {
      put: () =>
        new Promise((_, reject) => {
          refuse = () => reject(new Error("is no observation"));
        }),
    } as unknown as Sink<Observation>;
    const source = { take: () => new Promise(() => {}) } as unknown as Source<Action>;
    const options = { actions: source, observations: sink, simulator: 3, policy: 0, horizon: 9 };
    const exchange = new Exchange({ ...options, stages: [shownOf(0)] });
    exchange.begin();
    if (when === "before") {
      refuse();
      await new Promise((resolve) => setImmediate(resolve));
    }
    const answer = exchange.answer();
    if (when === "while") setImmediate(refuse);
    await expect(answer).rejects.toThrow("is no observation");
  },
);
