/**
 * `treadle multiplex` of drawn runs that compute beside each other, and the same runs over the same pool on virtual time. What
 * engines take is emulated, so a busy machine only makes messages and timers late; what sharing gains leaves room for that. `treadle bench
 * --only multiplex` has longer runs, and wants 3 % on a machine that does nothing else.
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { DrawnRun, runShapes, shareDrawnRuns, slowBeside } from "@treadle/simulation";
import { expect, test } from "vitest";
import { temporaryRuns, treadle } from "../support/treadle.ts";

const workflow = fileURLToPath(new URL("../../packages/bench/src/multiplex/drawn-stages", import.meta.url));
const [devices, steps, scale, turnSeconds] = [2, 8, 0.05, 0.5];
/** Of runs that take a quarter longer in turns, whichever begins first: less than that is what a busy machine may cost. */
const firstSeed = 13;
const slow = slowBeside(0.6);
const stages = ["rollout", "train"];
const besides = Object.fromEntries(
  stages.map((stage) => [stage, Object.fromEntries(stages.map((other) => [other, slow(stage, other)]))]),
);

test("runs beside each other take what they take on virtual time, and slow each other down by the table", async () => {
  const runs = (["reasoning", "tools"] as const).map((name, i) => {
    return new DrawnRun({ name, shape: runShapes[name], scale, devices, seed: firstSeed + i });
  });
  await using folder = await temporaryRuns();
  const ledger = join(folder.path, "ledger.txt");
  const settings = await Promise.all(
    runs.map(async (run) => {
      const file = join(folder.path, `${run.name}.json`);
      await writeFile(file, JSON.stringify(Array.from({ length: steps }, (_, step) => run.step(step + 1))));
      const own = { name: run.name, stages: file, ledger, steps, devices, runs: runs.length };
      const pooled = [`cluster.devices=${devices}`, "pool.share=always", `besides=${JSON.stringify(besides)}`];
      const values = [...Object.entries(own).map(([key, value]) => `${key}=${value}`), ...pooled];
      return values.flatMap((each) => ["--set", `${run.name}.${each}`]);
    }),
  );
  const { code, stdout, stderr } = await treadle([
    ...["multiplex", "--json", "--runs", folder.path, "--turn", String(turnSeconds), "--beat-limit", "60"],
    ...[...runs.map(({ name }) => `${name}=${workflow}`), ...settings.flat()],
  ]);
  expect(code, stderr).toBe(0);
  const lines = (await readFile(ledger, "utf8")).trim().split("\n");
  const at = (what: string) => lines.flatMap((line) => (line.includes(` ${what} `) ? Number(line.split(" ")[2]) : []));
  const real = (Math.max(...at("ends")) - Math.min(...at("begins"))) / 1000;
  const placed = { devices, steps, placement: "temporal", maxStaleness: 0, turnSeconds } as const;
  const simulated = shareDrawnRuns(runs, { ...placed, besides: slow }).makespanMs / 1000;
  const orders = [runs, [...runs].reverse()];
  const apart = Math.min(...orders.map((all) => shareDrawnRuns(all, placed).makespanMs)) / 1000;
  const percent = (100 * (real - simulated)) / simulated;
  process.stderr.write(
    `${simulated.toFixed(2)} s simulated, ${real.toFixed(2)} s real (${percent.toFixed(1)} %), ${apart.toFixed(2)} s in turns\n`,
  );
  expect(simulated).toBeLessThan(apart / 1.2);
  expect(real).toBeGreaterThan(simulated * 0.95);
  expect(real).toBeLessThan(apart);
  const { slowdowns } = JSON.parse(stdout) as {
    slowdowns: readonly { readonly work: string; readonly beside: string; readonly factor: number }[];
  };
  expect(slowdowns.length).toBeGreaterThan(0);
  for (const { work, beside, factor } of slowdowns) {
    const [own, other] = [work, beside].map((name) => name.slice(0, name.indexOf("@")));
    expect(Math.abs(factor / slow(own!, other!) - 1), `${work} beside ${beside}`).toBeLessThan(0.03);
  }
}, 300_000);
