/** Real processes, each of which saves its part of one state. */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { TreadleError } from "@treadle/contracts";
import { afterEach, expect, test } from "vitest";
import { pidOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { openSavedState, saveState } from "../support/saved-state.ts";
import { AloneWorker, DividingWorker, SharesWorker } from "../support/workers/sharing.ts";

const open: TestCluster[] = [];
afterEach(async () => {
  for (const each of open.splice(0)) await each.close();
});
async function start(): Promise<TestCluster> {
  const started = await startCluster({ cluster: { devices: 3 } });
  open.push(started);
  return started;
}
const ranks = (fixed: number) => ({ name: "shares", ranks: { fixed } });
const thrownBy = (work: PromiseLike<unknown>): Promise<TreadleError> =>
  Promise.resolve(work).then(
    () => expect.unreachable("it went well"),
    (error: unknown) => error as TreadleError,
  );

test("WH4, MF1: a call's reply means that the parts of all ranks are in one state; a death restores each from its own", async () => {
  const { cluster, events } = await start();
  const shares = cluster.launch(SharesWorker, undefined, ranks(3));
  await shares.count();
  expect(await shares.count()).toEqual(
    [
      ["0", "0"],
      ["1", "1"],
      ["2", "2"],
    ].map((each) => expect.arrayContaining(each)),
  );
  const folder = cluster.newestStates["shares"] as string;
  expect((await readdir(folder)).sort()).toEqual(["manifest.json", "rank-0", "rank-1", "rank-2"]);
  expect(await (await openSavedState(folder, 2, 3)).text("counted")).toBe('["2","2"]');
  expect((await readdir(join(folder, ".."))).filter((name) => name.endsWith(".partial"))).toEqual([]);

  const died = pidOf(events, "shares/1");
  process.kill(died, "SIGKILL");
  await until(() => events.some((event) => event.type === "worker-died"), "the death to be noticed");
  expect(await shares.show()).toEqual([
    ["0", "0"],
    ["1", "1"],
    ["2", "2"],
  ]);
});

test("a group of another size is refused by the number of parts, unless its class divides them anew", async () => {
  const resized = async (workerClass: typeof SharesWorker, fixed: number) => {
    const { cluster, folder } = await start();
    const path = join(folder, "state", "shares.old-1");
    const parts = ["0", "1"].map((rank) => ({
      counted: JSON.stringify([rank]),
      weights: new Uint8Array(3).fill(+rank),
    }));
    await saveState(path, "shares", parts);
    cluster.restoreStates({ shares: path });
    return cluster.launch(workerClass, undefined, ranks(fixed)).show();
  };
  expect(await resized(SharesWorker, 2)).toEqual([["0"], ["1"]]);
  const refused = await thrownBy(resized(SharesWorker, 3));
  expect(refused).toMatchObject({ code: "worker.setup-failed", cause: { code: "checkpoint.parts" } });
  expect(refused.message).toContain("has the parts of '2' ranks");
  expect(await resized(DividingWorker, 3)).toEqual([
    ["0", "1"],
    ["0", "1"],
    ["0", "1"],
  ]);
});

test("parts of one state need ranks that start again together, and calls that go to all of them", async () => {
  const { cluster } = await start();
  expect(() => cluster.launch(AloneWorker, undefined, ranks(2))).toThrow(/set 'static restart = "group"'/);
  const shares = cluster.launch(SharesWorker, undefined, ranks(2));
  expect(() => shares.onRanks(0).count()).toThrow(/call it on the whole group/);
  expect(await shares.onRanks(1).show()).toEqual([[]]);
});
