import { expect, test } from "vitest";
import { multiplexTable } from "../src/view/multiplex-table.ts";

const run = (name: string, times: { seconds: number; waitedSeconds: number; lostSeconds: number }) => ({
  ...{ name, runId: name, outcome: "finished" as const, why: undefined, leases: 1, queuedSeconds: 0 },
  ...{ leasedSeconds: times.seconds - times.waitedSeconds, slowdown: undefined, summary: undefined, ...times },
});

test("runs that shared devices are compared with the same one after the other", () => {
  const runs = [
    run("one", { seconds: 100, waitedSeconds: 30, lostSeconds: 10 }),
    run("two", { seconds: 90, waitedSeconds: 20, lostSeconds: 0 }),
  ];
  const table = multiplexTable({
    seconds: 100,
    leasedSeconds: 140,
    serialSeconds: 130,
    runs,
    slowdowns: [],
    history: "pool-1",
  });
  expect(table).toContain("one after the other, they would have taken about 2m 10s, 1.30 times as long if");
  expect(table).toMatch(/npx treadle trace --pool pool-1$/);
});
