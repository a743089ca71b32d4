/** Two or three runs, each with its own lock, over one pool: any workflow on any devices, in any interleaving. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { DevicePoolState, type PoolEffect, type PoolInput } from "../../src/index.ts";
import { build, randomOf, workflowSpec } from "../device-lock/drawn-workflows.ts";

const devices = ["d0", "d1", "d2"];
const limits = fc.record({
  residents: fc.constant(3),
  turnMs: fc.constantFrom(1, 20, 100_000),
  patienceMs: fc.constantFrom(1, 50, 100_000),
  yieldMs: fc.constant(1_000_000),
  beatLimitMs: fc.constant(1_000_000),
});

test("runs finish whatever they do and whoever waits, and no device is ever used by two (PD2, LL1, LL2, LL3, L2)", () => {
  fc.assert(
    fc.property(
      limits,
      fc.integer(),
      fc.array(fc.record({ workflow: workflowSpec, priority: fc.nat(1), weight: fc.constantFrom(0.5, 1, 3) }), {
        minLength: 2,
        maxLength: 3,
      }),
      (drawn, seed, specs) => {
        const random = randomOf(seed);
        const pool = new DevicePoolState(drawn);
        let nowMs = 0;
        // What is under way between pool and runs, in order for each run.
        const toRuns = specs.map((): (() => void)[] => []);
        const toPool: PoolInput[] = [];
        const act = (effects: readonly PoolEffect[]) => {
          for (const effect of effects) {
            const index = Number(effect.run);
            const { world } = runs[index]!;
            if (effect.type === "granted") toRuns[index]!.push(() => world.leased(effect.lease));
            else if (effect.type === "wanted")
              toRuns[index]!.push(() => world.leaseWanted(effect.token, effect.drains));
            else if (effect.type !== "admitted") throw new Error(JSON.stringify(effect));
          }
        };
        const runs = specs.map(({ workflow }, index) =>
          build(workflow, true, (effect) =>
            toPool.push(
              effect.type === "ask-lease"
                ? { type: "request", run: `${index}`, devices: effect.devices }
                : { type: "release", run: `${index}`, token: effect.token },
            ),
          ),
        );
        for (const [index, { priority, weight }] of specs.entries()) {
          const member = { priority, weight, devices: devices.map((id) => ({ id, memoryMiB: 90 })) };
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
          const used = runs.flatMap(({ world }) => world.devicesInUse);
          if (new Set(used).size < used.length) throw new Error(`a device is used by two runs: ${used}`);
          if (runs.every(({ world }) => world.isDone)) break;
        }
        for (const { world, expected } of runs) {
          expect(world.isDone, world.report()).toBe(true);
          expect(world.consumed.sort()).toEqual(expected);
        }
      },
    ),
    { numRuns: 40 },
  );
}, 120_000);
