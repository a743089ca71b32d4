/** `treadle multiplex` of runs that say `pool.share: always`, as a user starts it, on engines that are slowed by a table. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { startTreadle, temporaryRuns, treadle, until } from "../support/treadle.ts";

const stages = fileURLToPath(new URL("../../packages/bench/src/multiplex/drawn-stages", import.meta.url));
const minutes = 60_000;
const factor = 1.5;
const besides = JSON.stringify({
  rollout: { rollout: factor, train: factor },
  train: { rollout: factor, train: factor },
});

async function share(root: string, steps: { readonly a: number; readonly b: number }) {
  const ledger = join(root, "ledger.txt");
  const file = join(root, "stages.json");
  await writeFile(file, JSON.stringify([{ rolloutMs: [300], toolsMs: 50, trainMs: 300 }]));
  const settings = (["a", "b"] as const).flatMap((name) => {
    const own = [
      `name=${name}`,
      `stages=${file}`,
      `ledger=${ledger}`,
      `steps=${steps[name]}`,
      "runs=2",
      "pool.share=always",
    ];
    return [...own, `besides=${besides}`].flatMap((each) => ["--set", `${name}.${each}`]);
  });
  const flags = ["--json", "--runs", root, "--beat-limit", "60"];
  const started = startTreadle(["multiplex", ...flags, `a=${stages}`, `b=${stages}`, ...settings]);
  return { ...started, ledger: () => (existsSync(ledger) ? readFileSync(ledger, "utf8").trim().split("\n") : []) };
}

type Outcome = {
  readonly runs: readonly { readonly name: string; readonly outcome: string; readonly lostSeconds: number }[];
  readonly slowdowns: readonly { readonly work: string; readonly beside: string; readonly factor: number }[];
  readonly history: string;
};
const outcomeOf = ({ stdout, stderr }: { readonly stdout: string; readonly stderr: string }): Outcome => {
  expect(stdout, stderr).toMatch(/^\{/);
  return JSON.parse(stdout) as Outcome;
};

test(
  "PD10, LL4, SM1: both finish, how much each slows the other down is measured and counted, and a page shows who decided what",
  async () => {
    await using runs = await temporaryRuns();
    const shared = await share(runs.path, { a: 16, b: 16 });
    const { runs: outcomes, slowdowns, history } = outcomeOf(await shared.finished);
    expect(outcomes.map(({ outcome }) => outcome)).toEqual(["finished", "finished"]);
    const page = await treadle(["trace", "--pool", "--runs", runs.path]);
    expect(page.stdout, page.stderr).toMatch(/: 2 runs, \d+ decisions; open it in a browser\n$/);
    const html = readFileSync(join(runs.path, `${history}.html`), "utf8");
    expect(html).toContain("tried, so that their slowdowns are measured");
    expect(slowdowns.length).toBeGreaterThan(0);
    for (const { work, beside, factor: measured } of slowdowns) {
      expect(work).not.toBe(beside);
      // However busy the machine is: what engines take is emulated.
      expect(Math.abs(measured / factor - 1), `${work} beside ${beside}`).toBeLessThan(0.03);
    }
    expect(outcomes.some(({ lostSeconds }) => lostSeconds > 0)).toBe(true);
  },
  5 * minutes,
);

test(
  "PD2, PD10, PS2, MR1: one is killed while both compute on the device: the other goes on, alone",
  async () => {
    await using runs = await temporaryRuns();
    const shared = await share(runs.path, { a: 1000, b: 14 });
    await until(() => shared.ledger().filter((line) => line.startsWith("a ends")).length >= 8);
    const victim = readdirSync("/proc").find((name) => {
      if (!/^\d+$/.test(name)) return false;
      try {
        const words = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0");
        return (
          words.includes("--pooled") &&
          words.includes("name=a") &&
          words.includes(`ledger=${join(runs.path, "ledger.txt")}`)
        );
      } catch {
        return false; // it has just ended
      }
    });
    process.kill(Number(victim), "SIGKILL");
    const { runs: outcomes } = outcomeOf(await shared.finished);
    expect(outcomes.map(({ name, outcome }) => `${name} ${outcome}`)).toEqual(["a failed", "b finished"]);
  },
  5 * minutes,
);
