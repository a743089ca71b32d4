/** What a run of `embodied-ppo` has to have trained, however often it was struck: environments that die begin again, so rewards differ. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect } from "vitest";
import { z } from "zod";
import { readRecords } from "../../packages/runtime/src/runner/run/journal.ts";

const Stored = z.object({
  config: z.looseObject({
    horizon: z.int(),
    simulator: z.looseObject({ numEnvironments: z.int() }),
    actor: z.looseObject({ epochs: z.int(), minibatches: z.int() }),
  }),
});

/** J1: each step has the whole horizon of every environment once, and makes the versions of the weights that follow the last step's. */
export async function expectWholeHorizons(folder: string, steps: number): Promise<void> {
  const { config } = Stored.parse(JSON.parse(await readFile(join(folder, "config.json"), "utf8")));
  const { horizon, simulator, actor } = config;
  const path = join(folder, "journal.jsonl");
  const { records } = readRecords(await readFile(path, "utf8"), path);
  const made = records.flatMap((record) => (record.type === "step" ? [record] : []));
  expect(made.map(({ items }) => items)).toEqual(Array.from({ length: steps }, (_, at) => [`${at + 1}`]));
  for (const [at, { metrics }] of made.entries())
    expect(metrics, `step ${at + 1}`).toMatchObject({
      samples: horizon * simulator.numEnvironments,
      policyVersion: (at + 1) * actor.epochs * actor.minibatches,
    });
}
