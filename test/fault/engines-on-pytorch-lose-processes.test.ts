/**
 * A run on PyTorch loses Python processes, and its runner, at moments that are drawn; what it trains is as if it had lost none.
 *
 * `TREADLE_STRIKES` says how many runs are drawn, and `TREADLE_SEED` from what; one run is what CI has time for.
 */

import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { RunEvent } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { expect, test } from "vitest";
import { childrenOf, isAlive, pidOf, segmentsOf, until } from "../support/cluster.ts";
import { expectWholeLearningLedger } from "../support/learning-ledger.ts";
import { expectCleanEnd, pidsOf } from "../support/ledger.ts";
import { projectRoot } from "../support/project.ts";
import { runnersOfEachTest } from "../support/runner-process.ts";
import { lacksTorch } from "../support/torch.ts";

const reason = lacksTorch();
const runners = runnersOfEachTest();
const workflow = join(projectRoot, "test/support/workflows/learning-ledger");
const numSteps = 5;
const batch = 4;
const overrides = [
  ...[`steps=${numSteps}`, `batch=${batch}`, "groupSize=4", "ranks=1", "cluster.devices=1", "placement.mode=temporal"],
  ...["engine.kind=torch", "engine.device=cpu", "engine.shards=2", "engine.healthTimeoutMs=8000"],
  ...["supervision.heartbeatTimeoutMs=30000", "supervision.stopGraceMs=5000"],
];
/** Processes import PyTorch many times, on a machine that tests share. */
const patienceMs = 600_000;
const numRuns = Number(process.env["TREADLE_STRIKES"] ?? 1);

const workers = {
  rollout: "project-rollout/0",
  scorer: "project-inference/0",
  trainer: "ledger-actor/0",
  shard: "ledger-actor/0",
} as const;
type Victim = keyof typeof workers;

/** Of a worker that is starting, none. */
function pythonOf(events: readonly RunEvent[], victim: Victim): number | undefined {
  try {
    const [first] = childrenOf(pidOf(events, workers[victim]), "treadle_torch");
    return victim === "shard" && first !== undefined ? childrenOf(first, "treadle_torch")[0] : first;
  } catch {
    return undefined;
  }
}

/** Each victim once, stopped or killed, in an order, at steps and after times that are drawn; the runner between two of them. */
function drawStrikes(seed: number) {
  const random = createRandom(seed).split("strikes");
  const victims = random.split("order").shuffle(Object.keys(workers) as Victim[]);
  const killAt = 2 + random.split("runner").integer(3);
  const strikes = victims.map((victim, at) => {
    const own = random.split(victim);
    const signal: NodeJS.Signals = own.split("signal").float() < 0.5 ? "SIGKILL" : "SIGSTOP";
    return { victim, signal, step: 1 + at, afterMs: own.split("after").integer(1_000) };
  });
  return { strikes, killAt };
}

test.skipIf(reason).each(Array.from({ length: numRuns }, (_, at) => Number(process.env["TREADLE_SEED"]) + at))(
  reason ?? "J1, TO3, PF2, PF3, TP1: every prompt is trained once, causes are told, and no process is left (seed %i)",
  async (seed) => {
    const { strikes, killAt } = drawStrikes(seed);
    const told: string[] = [];
    const pythons = new Set<number>();
    const struck: { readonly worker: string; readonly signal: NodeJS.Signals; readonly from: number }[] = [];
    const all: RunEvent[] = [];
    let runId = "new";
    for (let killed = false; ; ) {
      const { child, events, exited, threw } = runners.start(runId, overrides, workflow);
      const over = exited.then(() => true);
      const begun = async (step: number) =>
        until(
          () =>
            threw() ??
            events.find(
              (event) => event.type === "run-finished" || (event.type === "step-started" && event.step >= step),
            ),
          `step ${step} of seed ${seed}`,
          patienceMs,
        );
      const note = () => {
        for (const victim of Object.keys(workers) as Victim[]) {
          const pid = pythonOf(events, victim);
          if (pid !== undefined) pythons.add(pid);
        }
      };
      while (strikes[0] && (killed || strikes[0].step <= killAt)) {
        const { victim, signal, step, afterMs } = strikes.shift()!;
        await begun(step);
        await delay(afterMs);
        const pid = await until(() => threw() ?? pythonOf(events, victim), `'${victim}' to have a process`, patienceMs);
        if (typeof pid !== "number") break;
        note();
        struck.push({ worker: workers[victim], signal, from: all.length + events.length });
        told.push(`${signal} of the ${victim}'s process ${afterMs} ms into step ${step}`);
        process.kill(pid, signal);
      }
      if (!killed) {
        await begun(killAt);
        note();
        told.push(`SIGKILL of the runner in step ${killAt}`);
        child.kill("SIGKILL");
      }
      await over;
      note();
      all.push(...events);
      const first = events.find((event) => event.type === "run-started");
      runId = first?.runId ?? runId;
      expect(threw(), `seed ${seed}: ${told.join("; ")}`).toBeUndefined();
      if (killed) break;
      killed = true;
      await until(
        () => [...pythons, ...pidsOf(all)].every((pid) => !isAlive(pid)),
        "all of a killed runner's processes to end",
        patienceMs,
      );
      await until(async () => (await segmentsOf(runId)).length === 0, "its memory to be removed", patienceMs);
    }
    const folder = join(runners.root, runId);
    const said = `seed ${seed}: ${told.join("; ")}\n${JSON.stringify(all.filter(({ type }) => type === "worker-died"))}`;
    expect(all.at(-1), said).toMatchObject({
      type: "run-finished",
      summary: { steps: numSteps, policyVersion: numSteps },
    });
    expect(struck.length, said).toBe(Object.keys(workers).length);
    await expectWholeLearningLedger(folder, numSteps, batch);
    await until(() => [...pythons].every((pid) => !isAlive(pid)), `processes of engines to end: ${said}`, patienceMs);
    await expectCleanEnd(runId, folder, pidsOf(all));
    const deaths = all.filter((event) => event.type === "worker-died");
    // What the runner's own end has overtaken need not be told.
    const causes = deaths.map(({ worker, reason: cause }) => ({ worker, cause }));
    expect(causes.length, said).toBeGreaterThan(0);
    for (const { cause } of causes) expect(cause, said).toMatch(/SIGKILL|signal 9|stopped or frozen|ended by signal/);
    for (const { cause } of causes) expect(cause, said).not.toMatch(/Connection dropped|LB pick/);
  },
  4 * patienceMs,
);
