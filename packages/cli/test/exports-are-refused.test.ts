/** What `treadle export` cannot export it says, with what is there instead. */
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { exportCommand } from "../src/commands/export.ts";

const model = { vocabSize: 16, layers: 1, width: 8, heads: 1, contextLength: 8 };
const engine = { kind: "torch" };
let root: string;
const runs = {
  embedded: { model },
  emulated: { model, emulated: {} },
  other: { engine },
  torch: { model, engine },
  scored: { model, engine },
};

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-exports-"));
  for (const [id, config] of Object.entries(runs)) {
    await mkdir(join(root, id), { recursive: true });
    await writeFile(join(root, id, "config.json"), JSON.stringify({ workflow: "w", config }));
  }
  for (const [step, score] of [
    [10, 0.5],
    [20, null],
  ] as const) {
    const path = join(root, "scored/checkpoints", `step-0000${step}`);
    await mkdir(path, { recursive: true });
    await writeFile(join(path, "checkpoint.json"), JSON.stringify({ step, score, components: ["actor"] }));
  }
});
afterAll(() => rm(root, { recursive: true, force: true }));

test.each([
  ["nothing", [], /no run 'nothing'.*; 'treadle runs' lists them/],
  ["embedded", [], /embedded engine.*; .*engine\.kind=torch/],
  ["emulated", [], /emulated its engines.*; run it without/],
  ["other", [], /no 'model' and 'engine' .*; call 'exportModel'/s],
  ["torch", [], /no checkpoint yet; let the run make one/],
  ["torch", ["--checkpoint", "first"], /'--checkpoint' is 'first': allowed are 'last', 'best'/],
  ["scored", ["--checkpoint", "30"], /no checkpoint of step '30'; name one that is kept: 10 \(score 0\.5\), 20/],
  ["scored", ["--component", "critic"], /step '20' has no component 'critic'; name one that it has: actor/],
  ["scored", ["--checkpoint", "best"], /checkpoints\/step-000010\/actor' is not there/],
])("run '%s' with %j", async (run, words, expected) => {
  const to = join(root, "model");
  const exporting = exportCommand().parseAsync([run, "--runs", root, "--to", to, ...words], { from: "user" });
  await expect(exporting).rejects.toThrow(expected);
  expect(await readdir(root)).not.toContain("model");
});
