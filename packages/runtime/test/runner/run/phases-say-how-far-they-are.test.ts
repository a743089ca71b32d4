import type { RunEvent } from "@treadle/contracts";
import { expect, test } from "vitest";
import { Reports } from "../../../src/runner/run/reports.ts";

function reports(events: RunEvent[]): Reports {
  const run = {
    config: { checkpoints: { stateEverySteps: 1 } },
    journal: { once: () => undefined, append: async () => {}, state: {} },
    states: { relative: () => undefined, prune: async () => {} },
    cluster: { newestStates: undefined },
    emit: (event: RunEvent) => events.push(event),
    watch: () => {},
  };
  return new Reports(run as never, {} as never, { current: undefined, drained: async () => {} } as never);
}

test("what is done once says how far it has come", async () => {
  const events: RunEvent[] = [];
  const value = await reports(events).once("imitation", async (progress) => {
    progress(0, 3);
    progress(1.5, 3);
    progress(3, 3);
    return "learnt";
  });
  expect(value).toBe("learnt");
  const phase = { type: "phase", name: "imitation", atMs: expect.any(Number) };
  expect(events).toEqual([phase, ...[0, 1.5, 3].map((done) => ({ ...phase, done, total: 3 }))]);
});

test.each([
  [-1, 3],
  [4, 3],
  [0, 0],
  [Number.NaN, 3],
  [1, Number.POSITIVE_INFINITY],
  ["1" as never, "x" as never],
])("'%s' of '%s' is no share, which is said with what it should be", async (done, total) => {
  const once = reports([]).once("imitation", async (progress) => progress(done, total));
  await expect(once).rejects.toMatchObject({
    code: "workflow.invalid",
    message: `once('imitation') says that '${done}' of '${total}' are done; give a number from 0 to the total, which is above 0`,
  });
});
