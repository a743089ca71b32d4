import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { startLoneWorker } from "../support/lone-worker.ts";
import { projectRoot as checkout } from "../support/project.ts";

let root: string;
let project: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-w-"));
  project = join(root, "project");
  await mkdir(project);
  await symlink(join(checkout, "node_modules"), join(project, "node_modules"));
});
afterEach(() => rm(root, { recursive: true, force: true }));

test("WH7: a call of another worker that comes while a worker sets up is answered by one that is set up", async () => {
  const go = join(root, "go");
  const worker = await startLoneWorker(
    project,
    `import { existsSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { Worker } from "@treadle/runtime";
export class MakerWorker extends Worker {
  learnt = "nothing";
  async setup() {
    while (!existsSync(${JSON.stringify(go)})) await delay(20);
    this.learnt = "all";
  }
  async make() { return this.learnt; }
}\n`,
  );
  const order: string[] = [];
  const called = worker.ofAnother
    .request("call", { call: "1/0", sequence: 0, method: "make", args: [] })
    .then(({ value }) => order.push(`answered ${value}`));
  // Behind the call on the same link: had it been let in, it would have been answered by now.
  await worker.ofAnother.request("call", { call: "2/0", sequence: 7, method: "make", args: [] }).catch(() => {});
  order.push("let go");
  await writeFile(go, "");
  await worker.ready;
  await called;
  expect(order).toEqual(["let go", "answered all"]);
  await worker.close();
});
