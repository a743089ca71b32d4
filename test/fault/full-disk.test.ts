/** Real file systems without space left: what cannot be written is named, nothing is lost, and a resume goes on. */
import { spawn } from "node:child_process";
import { appendFile, cp, mkdir, mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { RunEvent } from "@treadle/contracts";
import { runWorkflow } from "@treadle/runtime/runner";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Journal, type JournalRecord } from "../../packages/runtime/src/runner/run/journal.ts";
import { expectCleanEnd, expectWholeLedger, ledgerOptions, ledgerWorkflow, pidsOf } from "../support/ledger.ts";
import { MountNamespace } from "../support/mount-namespace.ts";
import { loaderFlags, projectRoot, runner } from "../support/project.ts";

const steps = 10;

let root: string;
let namespace: MountNamespace | string;
/** of two steps, to go on with */
let begun: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-full-"));
  namespace = await MountNamespace.open();
  if (typeof namespace === "string") return;
  const { summary } = await runWorkflow(ledgerOptions(join(root, "begun"), () => {}, ["steps=2", "ranks=1"]));
  begun = summary.runId;
});
afterAll(async () => {
  if (typeof namespace !== "string") await namespace.close();
  await rm(root, { recursive: true, force: true });
});

type Told = RunEvent | { readonly type: "threw"; readonly code?: string; readonly message: string };

/** A runner inside of the namespace. */
async function run(inside: MountNamespace, runsRoot: string, runId: string, more: readonly string[] = []) {
  const node = [process.execPath, ...loaderFlags, runner, projectRoot, runsRoot, ledgerWorkflow, runId];
  const overrides = [`steps=${steps}`, "ranks=1", "pauseMs=0", ...more];
  const [command, ...rest] = inside.command(projectRoot, [...node, ...overrides]);
  const child = spawn(command, rest, { stdio: ["ignore", "pipe", "inherit"] });
  const told: Told[] = [];
  createInterface({ input: child.stdout }).on("line", (line) => told.push(JSON.parse(line) as Told));
  const code = await new Promise<number | null>((resolve) => child.once("close", resolve));
  const threw = told.find((each) => each.type === "threw");
  return { code, threw, pids: pidsOf(told as RunEvent[]) };
}

/** Puts a small file system with what is at `$1`, mounted at `$2`, in its place, and fills it. */
const fill = `
  mkdir -p "$2"
  mount -t tmpfs -o size=256k none "$2"
  cp -a "$1" "$2/content"
  mount --bind "$2/content" "$1"
  dd if=/dev/zero of="$2/filler" bs=4k 2>/dev/null || true`;

test.for([
  ["metrics.jsonl", "disk.full"],
  ["state", "disk.full"],
  ["state", "disk.full", "checkpoints.stateEverySteps=3"],
  ["checkpoints", "disk.full"],
  [".", "disk.full"],
  ["trace.jsonl", undefined],
  ["logs", undefined],
] as const)(
  "a run whose %s has no space left tells what it means, and loses nothing",
  { timeout: 240_000 },
  async ([place, code, ...more], { skip }) => {
    if (typeof namespace === "string") return skip(namespace);
    const runsRoot = join(root, `of-${place}${more.length}`);
    const folder = join(runsRoot, begun);
    await mkdir(runsRoot);
    await cp(join(root, "begun", begun), folder, { recursive: true });
    // The last block of a file has room for what is small, and rows of metrics are.
    const rows = await readFile(join(folder, "metrics.jsonl"), "utf8");
    await appendFile(join(folder, "metrics.jsonl"), rows.repeat(Math.floor(4096 / rows.length) - 1));
    const box = join(root, `box-${place}${more.length}`);
    await namespace.shell(fill, join(folder, place), box);

    const tight = await run(namespace, runsRoot, begun, more);
    expect(tight.threw?.code).toBe(code);
    expect(tight.code).toBe(code === undefined ? 0 : 1);
    if (code !== undefined) {
      expect(tight.threw?.message).toContain(place === "." ? folder : join(folder, place));
      expect(tight.threw?.message).toMatch(/no space left.*free some/);
    }
    const seen = namespace.outside(folder);
    await expectCleanEnd(begun, seen, tight.pids);

    await namespace.shell('rm "$1/filler"', box);
    if (code !== undefined) expect((await run(namespace, runsRoot, begun, more)).code).toBe(0);
    await expectWholeLedger(seen, steps, 12);
    for (const kept of ["state", "checkpoints"]) {
      expect((await readdir(join(seen, kept))).filter((name) => name.includes("partial"))).toEqual([]);
    }
  },
);

test("a journal without space refuses what comes, keeps what it was told is done, and goes on once there is space", async ({
  skip,
}) => {
  if (typeof namespace === "string") return skip(namespace);
  const folder = join(root, "journal");
  await mkdir(folder);
  await namespace.shell(fill, folder, join(root, "box-journal"));
  const path = join(namespace.outside(folder), "journal.jsonl");
  await namespace.shell('truncate -s -16k "$1/filler"', join(root, "box-journal"));
  const journal = await Journal.open(path);
  const record = (step: number): JournalRecord => ({
    ...{ type: "step", step, seconds: 1, metrics: {}, state: {} },
    items: Array.from({ length: 30 }, (_, i) => `prompt ${i} of step ${step}`),
  });
  let committed = 0;
  const filling = (async () => {
    for (;;) {
      await journal.append(record(committed + 1));
      committed++;
    }
  })();
  await expect(filling).rejects.toMatchObject({ code: "disk.full", message: expect.stringContaining("free some") });
  await namespace.shell('rm "$1/filler"', join(root, "box-journal"));
  // The line that did not fit is torn: nothing may follow it.
  await expect(journal.append(record(committed + 1))).rejects.toMatchObject({ code: "disk.full" });
  await journal.close();
  expect(committed).toBeGreaterThan(3);
  const again = await Journal.open(path);
  expect(again.records).toEqual(Array.from({ length: committed }, (_, i) => record(i + 1)));
  await again.append(record(committed + 1));
  await again.close();
});

test("a run that finds no space for its folder says so and starts nothing", async ({ skip }) => {
  if (typeof namespace === "string") return skip(namespace);
  const runsRoot = join(root, "no-room");
  await mkdir(runsRoot);
  await namespace.shell(fill, runsRoot, join(root, "box-no-room"));
  const { code, threw, pids } = await run(namespace, runsRoot, "new");
  expect(code).toBe(1);
  expect(threw).toMatchObject({ code: "disk.full", message: expect.stringContaining(runsRoot) });
  expect(pids).toEqual([]);
}, 180_000);
