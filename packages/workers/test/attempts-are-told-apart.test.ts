import type { Sink, Source } from "@treadle/runtime";
import fc from "fast-check";
import { expect, test } from "vitest";
import { Exchange } from "../src/simulator/exchange.ts";
import type { Action, Observation } from "../src/simulator/items.ts";

test("SE1: every attempt has a name of its own, and whatever answers come late, the one to the last observation counts", async () => {
  const late = fc.array(fc.nat(20), { maxLength: 4 });
  const attempts = fc.array(fc.array(late, { minLength: 1, maxLength: 4 }), { minLength: 1, maxLength: 4 });
  await fc.assert(
    fc.asyncProperty(attempts, async (all) => {
      const shown: Observation[] = [];
      const answers: Action[] = [];
      const answerTo = ({ simulator, attempt, time }: Observation): Action => ({
        ...{ simulator, attempt, time },
        kind: "act",
        policyVersion: 0,
        actions: Float32Array.of(shown.length),
      });
      let lates: readonly number[] = [];
      const observations = {
        put: async (observation: Observation) => {
          shown.push(observation);
          // Those of before, of this attempt and of earlier ones, are delivered again first.
          const before = shown.slice(0, -1);
          for (const at of lates)
            if (before.length > 0) answers.push(answerTo(before[at % before.length] as Observation));
          answers.push(answerTo(observation));
        },
      } as unknown as Sink<Observation>;
      const actions = { take: async () => answers.splice(0, 1) } as unknown as Source<Action>;
      const exchange = new Exchange({
        actions,
        observations,
        simulator: 3,
        policy: 0,
        firstEnvironment: 0,
        horizon: 9,
      });
      const names: string[] = [];
      const floats = Float32Array.of(0);
      const flags = Uint8Array.of(0);
      const transition = { observations: floats, finalObservations: floats, rewards: floats };
      for (const steps of all) {
        for (const [time, each] of steps.entries()) {
          lates = each;
          const action =
            time === 0
              ? await exchange.begin(floats, 1)
              : await exchange.goOn({ ...transition, terminated: flags, truncated: flags });
          const { attempt } = shown.at(-1) as Observation;
          expect(action).toMatchObject({ attempt, time, simulator: 3 });
          expect(exchange.time).toBe(time);
          if (time === 0) names.push(attempt);
          expect(attempt).toBe(names.at(-1));
        }
      }
      expect(new Set(names).size).toBe(all.length);
    }),
    { numRuns: 50 },
  );
});
