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
/** More than a run takes between a strike and the death that it makes, which holds all of them up. */
const numSteps = 10;
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

/**
 * Each victim once, stopped or killed, in an order, at steps and after times that are drawn. Before some of them the runner is killed,
 * which may overtake the strike before.
 */
function drawStrikes(seed: number) {
  const random = createRandom(seed).split("strikes");
  const victims = random.split("order").shuffle(Object.keys(workers) as Victim[]);
  const strikes = victims.map((victim, at) => {
    const own = random.split(victim);
    const signal: NodeJS.Signals = own.split("signal").float() < 0.5 ? "SIGKILL" : "SIGSTOP";
    return { victim, signal, step: 1 + at, afterMs: own.split("after").integer(400) };
  });
  const numBefore = 1 + random.split("runner").integer(victims.length - 1);
  const isOvertaken = random.split("overtaken").float() < 0.5;
  return { lives: [strikes.slice(0, numBefore), strikes.slice(numBefore)], isOvertaken };
}

test.skipIf(reason).each(Array.from({ length: numRuns }, (_, at) => Number(process.env["TREADLE_SEED"]) + at))(
  reason ?? "J1, TO3, PF2, PF3, TP1: every prompt is trained once, causes are told, and no process is left (seed %i)",
  async (seed) => {
    const { lives, isOvertaken } = drawStrikes(seed);
    const told: string[] = [];
    const pythons = new Set<number>();
    const all: RunEvent[] = [];
    let runId = "new";
    for (const [life, strikes] of lives.entries()) {
      const isLast = life === lives.length - 1;
      const { child, events, exited, threw } = runners.start(runId, overrides, workflow);
      const look = <T>(what: string, find: () => T) =>
        until(
          () => {
            const end = threw() ?? events.find(({ type }) => type === "run-finished");
            if (end) throw new Error(`the run ended before ${what}: ${JSON.stringify(end)}; ${told.join("; ")}`);
            return find();
          },
          `${what} (seed ${seed}: ${told.join("; ")})`,
          patienceMs,
        );
      const note = () => {
        for (const victim of Object.keys(workers) as Victim[]) {
          const pid = pythonOf(events, victim);
          if (pid !== undefined) pythons.add(pid);
        }
      };
      for (const [at, { victim, signal, step, afterMs }] of strikes.entries()) {
        await look(`step ${step}`, () => events.some((event) => event.type === "step-started" && event.step >= step));
        await delay(afterMs);
        const pid = await look(`'${victim}' has a process`, () => pythonOf(events, victim));
        note();
        const from = events.length;
        process.kill(pid, signal);
        told.push(`${signal} of the ${victim}'s process, ${afterMs} ms into step ${step}`);
        if (!isLast && isOvertaken && at === strikes.length - 1) continue;
        const death = await look(`the worker of '${victim}' ends`, () =>
          events.slice(from).find((event) => event.type === "worker-died" && event.worker === workers[victim]),
        );
        const cause = signal === "SIGKILL" ? /SIGKILL|signal 9/ : /stopped or frozen/;
        expect(death, `seed ${seed}: ${told.join("; ")}`).toMatchObject({ reason: expect.stringMatching(cause) });
      }
      if (!isLast) {
        note();
        told.push("SIGKILL of the runner");
        child.kill("SIGKILL");
      }
      await exited;
      all.push(...events);
      const first = events.find((event) => event.type === "run-started");
      runId = first?.runId ?? runId;
      expect(threw(), `seed ${seed}: ${told.join("; ")}`).toBeUndefined();
      const pids = () => [...pythons, ...pidsOf(all)].filter(isAlive);
      await until(() => pids().length === 0, `processes to end (seed ${seed}: ${told.join("; ")})`, 60_000);
      await until(async () => (await segmentsOf(runId)).length === 0, "the run's memory to be removed", 60_000);
    }
    const folder = join(runners.root, runId);
    const said = `seed ${seed}: ${told.join("; ")}`;
    console.info(said);
    expect(all.at(-1), said).toMatchObject({
      type: "run-finished",
      summary: { steps: numSteps, policyVersion: numSteps },
    });
    await expectWholeLearningLedger(folder, numSteps, batch);
    await expectCleanEnd(runId, folder, pidsOf(all));
  },
  4 * patienceMs,
);
