/** Simulators in stages, answered together or one by one: who is answered when decides nothing about what is made. */
import { ActorCriticConfig } from "@treadle/engines";
import type { Sink, Source } from "@treadle/runtime";
import fc from "fast-check";
import { expect, test } from "vitest";
import { rowsOf } from "../src/actor/control-actor-worker.ts";
import { builtInEnvironments } from "../src/simulator/built-in.ts";
import { stagesOf } from "../src/simulator/environment-stage.ts";
import type { Action, Observation, Trajectory } from "../src/simulator/items.ts";
import { SimulatorWorker } from "../src/simulator/simulator-worker.ts";
import { contextOf } from "./support/context.ts";
import { CountingPolicy, type Cycle, play } from "./support/cycle.ts";

/** Wide actions let poles fall after a few steps, at other turns in each environment; time ends the other episodes. */
const model = ActorCriticConfig.parse({ observationSize: 4, actionSize: 1, hidden: [8], initialLogDeviation: 1 });
const worldSeed = contextOf({}, "any").seed;

const drawn = fc.record({
  numEnvironments: fc.integer({ min: 1, max: 7 }),
  maxSteps: fc.integer({ min: 1, max: 12 }),
  horizon: fc.integer({ min: 1, max: 25 }),
  pipelineStages: fc.integer({ min: 1, max: 4 }),
  simulators: fc.integer({ min: 1, max: 3 }),
  policies: fc.integer({ min: 1, max: 3 }),
  maxBatch: fc.option(fc.integer({ min: 1, max: 8 }), { nil: undefined }),
  order: fc.uuid(),
});
type Drawn = typeof drawn extends fc.Arbitrary<infer T> ? T : never;

const cycleOf = ({ numEnvironments, maxSteps, pipelineStages, ...rest }: Drawn): Cycle => ({
  ...{ ...rest, model, calls: 2 },
  simulator: { environment: { name: "inverted-pendulum", maxSteps }, numEnvironments, pipelineStages },
});

test("trajectories are the same bit for bit, however environments are split over stages and simulators, and whoever is answered with whom", async () => {
  const seen = { ends: 0, mostRows: 0 };
  await fc.assert(
    fc.asyncProperty(drawn, async (given) => {
      const cycle = cycleOf(given);
      const alone = { ...cycle, simulators: 1, policies: 1, maxBatch: undefined };
      const whole = await play({ ...alone, simulator: { ...cycle.simulator, pipelineStages: 1 } });
      const split = await play(cycle, (rows) => {
        seen.mostRows = Math.max(seen.mostRows, rows);
      });
      expect(split.trajectories).toEqual(whole.trajectories);
      for (const made of whole.trajectories) expect(made).toHaveLength(given.numEnvironments);
      seen.ends += whole.trajectories.flat().filter(({ terminated }) => terminated.includes(1)).length;
      // What a simulator reports is a mean over its own environments.
      const staged = await play({ ...cycle, simulators: 1 });
      expect(staged.reports).toEqual(whole.reports);
    }),
    { numRuns: 12 },
  );
  expect(seen.ends).toBeGreaterThan(0);
  expect(seen.mostRows).toBeGreaterThan(1);
}, 300_000);

test("episodes end and begin at any turn: each trajectory is what its environment does alone with these actions, from call to call", async () => {
  await fc.assert(
    fc.asyncProperty(drawn, async (given) => {
      const { trajectories } = await play(cycleOf(given));
      for (let environment = 0; environment < given.numEnvironments; environment++) {
        const create = builtInEnvironments.create({ name: "inverted-pendulum", maxSteps: given.maxSteps });
        using alone = await create({ numEnvironments: 1, firstEnvironment: environment, seed: worldSeed });
        let shown = alone.reset();
        let age = 0;
        for (const call of trajectories) {
          const { observations, actions, rewards, terminated, truncated } = call[environment] as Trajectory;
          for (let time = 0; time < given.horizon; time++) {
            expect(observations.slice(4 * time, 4 * time + 4)).toEqual(shown);
            const step = alone.step(actions.slice(time, time + 1));
            expect([rewards[time], terminated[time], truncated[time]]).toEqual([
              step.rewards[0],
              step.terminated[0],
              step.truncated[0],
            ]);
            age += 1;
            expect(truncated[time] === 1).toBe(age === given.maxSteps && terminated[time] === 0);
            if (terminated[time] || truncated[time]) age = 0;
            shown = step.observations;
          }
        }
      }
    }),
    { numRuns: 8 },
  );
}, 300_000);

test("advantages and returns stop at every end: those of a trajectory are those of its episodes, each alone", () => {
  const value = fc.float({ min: -4, max: 4, noNaN: true });
  const step = fc.record({
    ...{ reward: value, value, finalValue: value },
    end: fc.constantFrom("none", "none", "none", "terminated", "truncated", "both"),
  });
  const options = fc.record({
    discount: fc.double({ min: 0, max: 1, noNaN: true }),
    lambda: fc.double({ min: 0, max: 1, noNaN: true }),
  });
  type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;
  const trajectoryOf = (steps: readonly Step[], lastValue: number): Trajectory => ({
    ...{ environment: 0, policyVersion: 0, lastValue },
    observations: new Float32Array(steps.length),
    actions: new Float32Array(steps.length),
    logprobs: new Float32Array(steps.length),
    values: Float32Array.from(steps, (each) => each.value),
    rewards: Float32Array.from(steps, ({ reward }) => reward),
    terminated: Uint8Array.from(steps, ({ end }) => (end === "terminated" || end === "both" ? 1 : 0)),
    truncated: Uint8Array.from(steps, ({ end }) => (end === "truncated" || end === "both" ? 1 : 0)),
    finalValues: Float32Array.from(steps, ({ finalValue }) => finalValue),
  });
  fc.assert(
    fc.property(fc.array(step, { minLength: 1, maxLength: 20 }), value, options, (steps, lastValue, given) => {
      const episodes: Step[][] = [[]];
      for (const each of steps) {
        episodes.at(-1)?.push(each);
        if (each.end !== "none") episodes.push([]);
      }
      const apart = episodes.flatMap((own) => {
        const last = own.at(-1);
        if (!last) return [];
        // Whatever comes after an episode is told in its last value alone.
        const after = { none: lastValue, terminated: 0, both: 0, truncated: Math.fround(last.finalValue) }[last.end];
        const open = own.map((each) => ({ ...each, end: "none" as const }));
        return rowsOf(trajectoryOf(open, after), given);
      });
      const values = (rows: ReturnType<typeof rowsOf>) => rows.map((row) => [row.advantage, row.return]);
      expect(values(rowsOf(trajectoryOf(steps, lastValue), given))).toEqual(values(apart));
    }),
  );
});

test("a simulator's environments are split into parts that differ by one at most, none of them empty", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 9 }), fc.nat(40), fc.nat(40), (stages, numEnvironments, firstEnvironment) => {
      const parts = stagesOf(stages, { numEnvironments, firstEnvironment, seed: 1 });
      expect(parts).toHaveLength(Math.min(stages, numEnvironments));
      const sizes = parts.map((part) => part.numEnvironments);
      if (parts.length > 0) expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(1);
      let next = firstEnvironment;
      for (const part of parts) {
        expect(part.numEnvironments).toBeGreaterThan(0);
        expect(part.firstEnvironment).toBe(next);
        next += part.numEnvironments;
      }
      expect(next).toBe(firstEnvironment + numEnvironments);
    }),
  );
});

/** Both ends of the channels in the test's hands. */
function byHand<T>() {
  const waiting: T[] = [];
  let wake: (() => void) | undefined;
  const give = (...items: T[]) => {
    waiting.push(...items);
    wake?.();
  };
  const take = async () => {
    while (waiting.length === 0) await new Promise<void>((resolve) => (wake = resolve));
    return waiting.splice(0, waiting.length);
  };
  return { waiting, give, take };
}

test("while the policy has one stage, the simulator steps the other, and waits for nothing but its answer", async () => {
  const config = { environment: { name: "inverted-pendulum" }, numEnvironments: 4, pipelineStages: 2 };
  const simulator = new SimulatorWorker(contextOf(config, "simulator"));
  await simulator.setup();
  const [shown, answers] = [byHand<Observation>(), byHand<Action>()];
  const source = { take: async () => [(await answers.take())[0]] } as unknown as Source<Action>;
  const sink = { put: async (...items: Observation[]) => shown.give(...items) } as unknown as Sink<Observation>;
  const simulated = simulator.simulate(source, sink, { horizon: 5, policies: 1 });
  const first = [...(await shown.take())];
  while (first.length < 2) first.push(...(await shown.take()));
  expect(first).toMatchObject([
    { stage: 0, stages: 2, time: 0, firstEnvironment: 0 },
    { stage: 1, stages: 2, time: 0, firstEnvironment: 2 },
  ]);
  const answer = ({ attempt, stage, time }: Observation, kind: Action["kind"] = "act"): Action => ({
    ...{ simulator: 0, stage, attempt, time, kind, policyVersion: 0 },
    actions: new Float32Array(2),
  });
  // The first stage alone is answered, again and again.
  let [own, other] = first as [Observation, Observation];
  for (let time = 1; time <= 3; time++) {
    answers.give(answer(own));
    [own] = (await shown.take()) as [Observation];
    expect(own).toMatchObject({ stage: 0, time });
  }
  answers.give(answer(other));
  [other] = (await shown.take()) as [Observation];
  expect(other).toMatchObject({ stage: 1, time: 1 });
  // SE3: who lost one stage has lost all.
  answers.give(answer(other, "restart"));
  const again = [...(await shown.take())];
  while (again.length < 2) again.push(...(await shown.take()));
  expect(again).toMatchObject([
    { stage: 0, time: 0 },
    { stage: 1, time: 0 },
  ]);
  expect(again[0]?.attempt).not.toBe(own.attempt);
  answers.give(answer(again[1] as Observation, "done"));
  await simulated;
  await simulator.teardown();
});

const small = ActorCriticConfig.parse({ observationSize: 1, actionSize: 1, hidden: [4] });
const seenBy = (simulator: number, others: Partial<Observation> = {}): Observation => ({
  ...{ simulator, stage: 0, stages: 1, attempt: `${simulator}`, time: 0, policy: 0, firstEnvironment: 2 * simulator },
  ...{ horizon: 1, observations: Float32Array.of(1, 2), finalObservations: new Float32Array(2) },
  ...{ rewards: new Float32Array(2), terminated: new Uint8Array(2), truncated: new Uint8Array(2) },
  ...others,
});

async function policyOf(batches: Observation[][], maxBatch?: number) {
  const rows: number[] = [];
  const policy = new CountingPolicy(contextOf({ model: small, maxBatch }, "policy"), (count) => rows.push(count));
  await policy.setup();
  const turns: { readonly answers: Action[]; readonly trajectories: Trajectory[] }[] = [];
  const take = async () => {
    turns.push({ answers: [], trajectories: [] });
    return batches.shift();
  };
  const source = { name: "observations", take } as unknown as Source<Observation>;
  const actions = { put: async (...items: Action[]) => void turns.at(-1)?.answers.push(...items) };
  const trajectories = { put: async (...items: Trajectory[]) => void turns.at(-1)?.trajectories.push(...items) };
  const acted = policy.act(source, actions as unknown as Sink<Action>, trajectories as unknown as Sink<Trajectory>);
  return { acted, rows, turns };
}

test("what is there of several simulators is answered in one call of the engine, with the values of truncated episodes", async () => {
  const batch = [0, 1, 2].map((simulator) => seenBy(simulator));
  const next = batch.map((seen) => ({ ...seen, time: 1, truncated: Uint8Array.of(0, seen.simulator === 1 ? 1 : 0) }));
  const { acted, rows, turns } = await policyOf([batch, next]);
  await acted;
  expect(rows).toEqual([6, 7]);
  expect(turns[0]?.answers.map(({ simulator, kind }) => [simulator, kind])).toEqual([0, 1, 2].map((n) => [n, "act"]));
  expect(turns[1]?.answers.map(({ kind }) => kind)).toEqual(["done", "done", "done"]);
  expect(turns[1]?.trajectories.map(({ environment }) => environment)).toEqual([0, 1, 2, 3, 4, 5]);
});

test("SE3: the trajectories of all stages are put together, with the one answer that ends the attempt", async () => {
  const stage = (at: number, time: number) =>
    seenBy(0, { ...{ stage: at, stages: 2, time, firstEnvironment: 2 * at } });
  const { acted, turns } = await policyOf([[stage(1, 0)], [stage(1, 1)], [stage(0, 0)], [stage(0, 1)]]);
  await acted;
  const told = turns.map(({ answers, trajectories }) => [answers.map(({ kind }) => kind), trajectories.length]);
  expect(told).toEqual([
    [["act"], 0],
    [[], 0],
    [["act"], 0],
    [["done"], 4],
    [[], 0],
  ]);
});

test("a channel that does not weigh observations by their environments is refused where 'maxBatch' counts", async () => {
  const batch = [seenBy(0), seenBy(1)];
  await (await policyOf([[...batch]], 4)).acted;
  await (await policyOf([[seenBy(0)]], 1)).acted; // one alone may have more
  await expect((await policyOf([[...batch]], 3)).acted).rejects.toMatchObject({
    code: "workflow.invalid",
    message: expect.stringContaining("'observations' gave observations of '4' environments at once"),
  });
});
