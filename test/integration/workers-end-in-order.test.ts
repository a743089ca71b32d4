import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { startCluster } from "../support/cluster.ts";
import { ProbeWorker } from "../support/workers/probe.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-torn-down-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

test("workers of a run that went well are torn down, and what they have observed last has come", async () => {
  const world = await startCluster({ cluster: { devices: 2 } });
  const probe = await world.cluster.launch(ProbeWorker, { tornDown: folder }, { ranks: { fixed: 2 } });
  await probe.trace();
  await world.close();
  expect((await readdir(folder)).sort()).toEqual(["rank-0", "rank-1"]);
  const spans = JSON.stringify(world.spans);
  for (const worker of ["probe/0", "probe/1"])
    expect(spans).toMatch(new RegExp(`"worker":"${worker}".*"name":"trace"`));
});
