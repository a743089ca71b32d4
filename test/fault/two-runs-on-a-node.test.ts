import { appendFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { until } from "../support/cluster.ts";
import { NodesWorld } from "../support/nodes.ts";
import { startTreadle } from "../support/treadle.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

const ask = async (args: readonly string[]): Promise<string> => {
  const { code, stdout, stderr } = await startTreadle(args).finished;
  expect(code, stderr).toBe(0);
  return stdout;
};

test("two runs on one node say so, as does the status; one that wants it for itself is refused; of a killed runner the last step is known", async () => {
  await world.startNode("a");
  const runs = [0, 1].map(() => world.startRun(["steps=100000", "pauseMs=60"]));
  const ids = await Promise.all(runs.map(async (run) => (await run.event("run-started")).runId));
  await Promise.all(runs.map((run, i) => run.line(`workers of run '${ids[1 - i]}'`)));
  const shared = await ask(["status", ...world.flagsOf()]);
  expect(shared).toMatch(/workers of 2 runs that share its cores: /);
  for (const id of ids) expect(shared).toMatch(new RegExp(`\\d+ of '${id}'`));

  const alone = world.startRun(["cluster.exclusive=true", "cluster.nodeWaitMs=2000"]);
  expect(await alone.exited).toBe(1);
  expect(alone.events.at(-1)).toMatchObject({
    code: "node.unavailable",
    message: expect.stringMatching(/'a' cannot be used: run '.*' has \d+ workers there.*cluster\.exclusive/),
  });

  // What workers print may move a cursor, write titles, colour a terminal.
  const [first] = runs;
  const folder = join(world.runs, ids[0] as string);
  appendFileSync(
    join(folder, "logs/maker-0.log"),
    "\u001b]0;owned\u0007\u001b[2J\u001b[31mred\u001b[0m\u009b5n\r\tend\n",
  );
  const logs = await ask(["logs", "maker/0", "--run", ids[0] as string, "--runs", world.runs]);
  expect(logs).toMatch(/maker\/0 +red +end\n/);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: that there are none is the point
  expect(logs).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/);

  await first?.event("step-finished", ({ step }) => step >= 4);
  first?.child.kill("SIGKILL");
  await first?.exited;
  const steps = first?.events.flatMap((event) => (event.type === "step-finished" ? [event.step] : [])) ?? [];
  let said: number | undefined;
  await until(async () => {
    const text = await ask(["status", ...world.flagsOf()]);
    const found = new RegExp(`${ids[0]}: its runner is gone, step (\\d+)`).exec(text);
    said = found === null ? undefined : Number(found[1]);
    return said !== undefined;
  }, "the status to tell of the runner");
  // It is written at most once a second; steps take a fraction of that.
  expect(said).toBeGreaterThan(0);
  expect(said).toBeLessThanOrEqual((steps.at(-1) ?? 0) + 1);
  runs[1]?.child.kill("SIGINT");
  expect(await runs[1]?.exited).toBe(0);
}, 480_000);
