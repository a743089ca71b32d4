/** Two or three runs, each with its own lock, over one pool: any workflow on any devices, in any interleaving. */
import type { PoolReply } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { DevicePoolState, leaseInput, leaseRequest, type PoolEffect, type PoolInput } from "../../src/index.ts";
import { build, randomOf, workflowSpec } from "../device-lock/drawn-workflows.ts";

const devices = ["d0", "d1", "d2"];
const limits = fc.record({
  residents: fc.constant(3),
  turnMs: fc.constantFrom(1, 20, 100_000),
  patienceMs: fc.constantFrom(1, 50, 100_000),
  yieldMs: fc.constant(1_000_000),
  beatLimitMs: fc.constant(1_000_000),
});

/** Some works of two runs may compute on one device at once, and others may not. */
const mayMeet = (seed: number, a = "", b = ""): boolean =>
  [...`${[a, b].sort()}`].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) | 0, seed) % 3 !== 0;

let numTogether = 0;

test("runs finish whatever they do and whoever waits, and no device is ever used by two that may not (PD2, PD10, LL1, LL2, LL3, LL4, L2)", () => {
  fc.assert(
    fc.property(
      limits,
      fc.integer(),
      fc.array(
        fc.record({
          workflow: workflowSpec,
          priority: fc.nat(1),
          weight: fc.constantFrom(0.5, 1, 3),
          share: fc.constantFrom("idle" as const, "always" as const),
        }),
        {
          minLength: 2,
          maxLength: 3,
        },
      ),
      (drawn, seed, specs) => {
        const random = randomOf(seed);
        const pool = new DevicePoolState(drawn, 0, {
          ...{ version: 0, worked: () => {}, gone: () => {}, slowdown: () => 1 },
          sharesNow: ({ waiter, holders }) => ({
            shares: holders.every(({ work }) => mayMeet(seed, waiter.work, work)),
            why: "drawn",
          }),
        });
        let nowMs = 0;
        // What is under way between pool and runs, in order for each run.
        const toRuns = specs.map((): (() => void)[] => []);
        const toPool: PoolInput[] = [];
        const act = (effects: readonly PoolEffect[]) => {
          for (const effect of effects) {
            const index = Number(effect.run);
            const { world } = runs[index]!;
            const { run: _, ...reply } = effect;
            const input = leaseInput(reply as PoolReply);
            if (input) toRuns[index]!.push(() => world.lease(input));
            else if (effect.type !== "admitted" && effect.type !== "beside") throw new Error(JSON.stringify(effect));
          }
        };
        const runs = specs.map(({ workflow }, index) =>
          build(workflow, true, (effect) => {
            const request = leaseRequest(effect, (component) => `${index} ${component}`);
            toPool.push({ ...request, run: `${index}` } as PoolInput);
          }),
        );
        for (const [index, { priority, weight, share }] of specs.entries()) {
          const member = { priority, weight, share, devices: devices.map((id) => ({ id, memoryMiB: 90 })) };
          act(pool.handle({ type: "join", run: `${index}`, member }, nowMs));
        }
        const stepOf = [
          ...runs.map(
            ({ world }) =>
              () =>
                world.step(),
          ),
          ...toRuns.map((queue) => () => {
            const next = queue.shift();
            next?.();
            return next !== undefined;
          }),
          () => {
            const next = toPool.shift();
            if (next) act(pool.handle(next, nowMs));
            return next !== undefined;
          },
        ];
        for (let idle = 0; idle < 2_000; ) {
          nowMs += Math.floor(random() * 3);
          const moved = stepOf[Math.floor(random() * stepOf.length)]!();
          idle = moved ? 0 : idle + 1;
          if (idle % 50 === 49) {
            nowMs += 20;
            act(pool.handle({ type: "tick" }, nowMs));
          }
          for (const device of devices) {
            const there = runs.flatMap(({ world }, index) => {
              const components = world.componentsOn(device);
              return components.length === 0 ? [] : [{ index, work: `${index} ${components}` }];
            });
            if (there.length < 2) continue;
            const shown = there.map(({ work }) => work).join(" and ");
            const [first, second] = there.map(({ work }) => work);
            const isAllowed =
              mayMeet(seed, first, second) && there.every(({ index }) => specs[index]!.share === "always");
            if (there.length > 2 || !isAllowed) throw new Error(`PD10, LL4: ${shown} compute on ${device}`);
            numTogether++;
          }
          if (runs.every(({ world }) => world.isDone)) break;
        }
        for (const { world, expected } of runs) {
          expect(world.isDone, world.report()).toBe(true);
          expect(world.consumed.sort()).toEqual(expected);
        }
      },
    ),
    { numRuns: 60 },
  );
  expect(numTogether, "some do compute together").toBeGreaterThan(100);
}, 120_000);
