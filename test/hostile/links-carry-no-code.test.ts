/**
 * Whoever has a run's token dials a worker of another node, and whoever has a runner's key calls it, with arguments that name
 * code: what it would leave behind is looked for, besides the refusal.
 */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { Peer, TreadleError } from "@treadle/contracts";
import { afterEach, beforeEach, expect, test } from "vitest";
import { type LoneWorker, startLoneWorker } from "../support/lone-worker.ts";
import { projectRoot as checkout } from "../support/project.ts";

const leavesMark = (path: string): string =>
  `import { writeFileSync } from "node:fs"; writeFileSync(${JSON.stringify(path)}, ""); export const Item = 1;\n`;

let root: string;
let project: string;
let mark: string;
let worker: LoneWorker;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-h-"));
  project = join(root, "project");
  mark = join(root, "was-run");
  for (const run of ["runs/other", "kept/elsewhere"]) {
    await mkdir(join(project, run, "state"), { recursive: true });
    await writeFile(join(project, run, "journal.jsonl"), "");
    await writeFile(join(project, run, "state/fetched.mjs"), leavesMark(mark));
  }
  await symlink(join(checkout, "node_modules"), join(project, "node_modules"));
  await writeFile(join(root, "outside.mjs"), leavesMark(mark));
  const source = `import { Worker } from "@treadle/runtime";
export class MakerWorker extends Worker { async make() { return "made"; } }\n`;
  worker = await startLoneWorker(project, source);
  await worker.ready;
});
afterEach(async () => {
  await worker.close();
  await rm(root, { recursive: true, force: true });
});

const sinkOf = (module: string) => ({
  $channel: "items",
  role: "sink",
  granularity: "all",
  schema: { module, exportName: "Item" },
});

/** The code of the refusal, or what was returned. */
const call = (peer: Peer, changes: object): Promise<unknown> =>
  peer.request("call", { call: "1/0", sequence: 0, method: "make", args: [], ...changes }).then(
    ({ value }) => value,
    (error: TreadleError) => error.code,
  );

test("WH6, NA2: a call runs no code that its arguments carry, or that lies outside of the project, whoever makes it", async () => {
  await symlink(join(root, "outside.mjs"), join(project, "innocent.mjs")); // since then: no worker is started with it
  expect(await call(worker.ofRunner, {})).toBe("made");
  const here = pathToFileURL(`${project}/`).href;
  for (const module of [
    `data:text/javascript,${encodeURIComponent(leavesMark(mark))}`,
    pathToFileURL(join(root, "outside.mjs")).href,
    `${here}../outside.mjs`,
    `${here}innocent.mjs`,
    `${here}runs/other/state/fetched.mjs`,
    `${here}kept/elsewhere/state/fetched.mjs`,
    "node:child_process",
    "https://example.org/x.mjs",
    "../../../outside.mjs",
    "no-such-package",
  ]) {
    expect(await call(worker.ofRunner, { args: [sinkOf(module)] }), module).toBe("worker.load-failed");
    expect(await call(worker.ofAnother, { args: [[{ deep: sinkOf(module) }]] }), module).toBe("workflow.invalid");
    expect(existsSync(mark), module).toBe(false);
  }
  const shipped = { ...sinkOf("@treadle/contracts"), schema: { module: "@treadle/contracts", exportName: "Episode" } };
  expect(await call(worker.ofRunner, { args: [shipped] })).toBe("made");
});

test("WH6: another worker calls beside the runner's calls, takes no turn of theirs, and saves nothing", async () => {
  expect(await call(worker.ofAnother, {})).toBe("made");
  expect(await call(worker.ofAnother, { sequence: 7 })).toBe("workflow.invalid");
  expect(await call(worker.ofAnother, { saveIn: join(root, "saved") })).toBe("workflow.invalid");
  expect((await readdir(root)).filter((name) => name.startsWith("saved"))).toEqual([]);
});
