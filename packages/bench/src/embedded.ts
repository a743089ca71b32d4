import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { TransformerEngine } from "@treadle/engines";
import { z } from "zod";
import { benchPackedRows } from "./packed-rows.ts";
import { policyGradient as loss } from "./policy-gradient.ts";
import { type BenchRow, row } from "./row.ts";

const models = {
  "2 layers of 64, 256 rows of 10": { contextLength: 10, promptLength: 6 },
  "2 layers of 64, 256 rows of 48": { contextLength: 48, promptLength: 16 },
};
const operations = ["generation", "scoring", "training"] as const;
const shape = { vocabSize: 16, layers: 2, width: 64, heads: 4 };
const numRows = 256;

type Case = (typeof models)[keyof typeof models] & { name: string; operation: (typeof operations)[number] };
const cases = Object.entries(models).flatMap(([name, model]): Case[] =>
  operations.map((operation) => ({ name: `${operation}, ${name}`, operation, ...model })),
);

const besideSources = (name: string) => fileURLToPath(new URL(`../pytorch/${name}`, import.meta.url));

/**
 * The embedded engine beside PyTorch, same model and batch, on one core each. Without PyTorch this machine's figures stand
 * alone, and after them what both took on the machine where they were compared last.
 */
export async function* benchEmbedded(rounds = 20): AsyncIterable<BenchRow> {
  const pytorch = await pytorchMilliseconds(rounds);
  for (const [index, one] of cases.entries()) {
    const own = { name: one.name, value: await leastMilliseconds(one, rounds), unit: "ms" };
    yield pytorch
      ? row({
          ...own,
          baseline: pytorch.milliseconds[index] ?? null,
          against: pytorch.against,
          ratioAtMost: 2.5,
          notMeasured: "processor time, so no waiting",
        })
      : row({
          ...own,
          notMeasured: "PyTorch on this machine; it runs where $TREADLE_PYTHON, or python3, imports it",
        });
  }
  if (!pytorch) yield* await committedRows();
  yield* benchPackedRows(rounds);
}

/** Both sides as they were measured on one machine: figures of two machines have no ratio. */
async function committedRows(): Promise<BenchRow[]> {
  const { against, machine, milliseconds } = Committed.parse(
    JSON.parse(await readFile(besideSources("pytorch.json"), "utf8")),
  );
  return Object.entries(milliseconds).map(([name, { engine, pytorch }]) =>
    row({
      name: `${name}, committed`,
      value: engine,
      unit: "ms",
      baseline: pytorch,
      against,
      notMeasured: `this machine: both sides ran on ${machine}`,
    }),
  );
}

async function leastMilliseconds({ operation, contextLength, promptLength }: Case, rounds: number): Promise<number> {
  const engine = await TransformerEngine.create({ ...shape, contextLength });
  const columns = contextLength;
  // Prompts differ: the engine reads equal ones once, which PyTorch here does not.
  const scrambled = (i: number) =>
    (Math.imul(Math.imul(i + 1, 0x9e3779b1) ^ 0x5bd1e995, 0x85ebca6b) >>> 9) % shape.vocabSize;
  const tokens = Int32Array.from({ length: numRows * columns }, (_, i) => scrambled(i));
  const prompts = Array.from({ length: numRows }, (_, row) =>
    tokens.slice(row * columns, row * columns + promptLength),
  );
  const fill = (value: (i: number) => number) =>
    Float32Array.from({ length: numRows * columns }, (_, i) => (i % columns === 0 ? 0 : value(i)));
  const advantages = fill(Math.sin);
  const batch = {
    rows: numRows,
    columns,
    tokens,
    weights: fill(() => 1),
    advantages,
    oldLogprobs: fill((i) => Math.cos(i) / 10 - 2.7),
  };
  const run: Record<Case["operation"], () => Promise<unknown>> = {
    generation: () => engine.generate(prompts, { maxTokens: columns, temperature: 1, stopTokens: [], seed: 0 }),
    scoring: () => engine.logprobs(batch),
    training: () => engine.forwardBackward(batch, loss),
  };
  let least = Number.POSITIVE_INFINITY;
  for (let round = 0; round < rounds; round++) {
    const before = process.cpuUsage();
    await run[operation]();
    const { user, system } = process.cpuUsage(before);
    least = Math.min(least, (user + system) / 1000);
  }
  await engine.close();
  return least;
}

const Committed = z.strictObject({
  against: z.string(),
  machine: z.string(),
  milliseconds: z.record(z.string(), z.strictObject({ engine: z.number(), pytorch: z.number() })),
});

type Pytorch = { readonly against: string; readonly milliseconds: readonly number[] };

/** Measured here, in the order of `cases`; undefined where PyTorch is missing. */
async function pytorchMilliseconds(rounds: number): Promise<Pytorch | undefined> {
  const python = process.env["TREADLE_PYTHON"] ?? "python3";
  const version = await promisify(execFile)(python, ["-c", "import torch; print(torch.__version__)"]).catch(
    () => undefined,
  );
  if (!version) return undefined;
  const running = promisify(execFile)(python, [besideSources("pytorch.py")]);
  running.child.stdin?.end(JSON.stringify(cases.map((one) => ({ ...shape, ...one, rows: numRows, rounds }))));
  const milliseconds = z.array(z.number()).parse(JSON.parse((await running).stdout));
  return { against: `PyTorch ${version.stdout.trim()} on one core`, milliseconds };
}
