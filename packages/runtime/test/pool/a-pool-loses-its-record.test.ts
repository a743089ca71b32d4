/** What a pool knows of the runs that it has admitted is lost, or not: no device is lent twice, and everybody is told. */
import type { RunProcess } from "@treadle/contracts";
import { DevicePoolState } from "@treadle/core";
import { expect, test, vi } from "vitest";
import { until } from "../../../../test/support/cluster.ts";
import { PoolService } from "../../src/pool/pool-service.ts";
import { closeAfterTest, Machine, machine, patient, type Run } from "./pool-machine.ts";

/** A run that holds the only device of a pool that then ends. */
async function leftAlone(there: Machine, openings = 1): Promise<Run> {
  for (let before = 1; before < openings; before++) await (await there.open()).close("it is killed");
  const first = await there.open();
  const run = there.run("a");
  await run.join();
  run.ask();
  await run.leased();
  await first.close("it is killed");
  return run;
}

for (const openings of [1, 3])
  test(`a record that is lost after ${openings} openings: nobody is lent what a run of it holds, which is told and ended (PS4, PS6)`, async () => {
    const there = new Machine();
    const a = await leftAlone(there, openings);
    there.log.entries.length = 0;
    const pool = await there.open();
    const b = there.run("b");
    const joined = b.join();
    await until(() => a.lost, "the run to be told");
    expect(a.lost).toMatchObject({ code: "pool.ended", message: expect.stringContaining("no record") });
    expect(b.client.memoryMiB).toBeUndefined();
    await joined;
    expect(there.processes.ended).toEqual([a.process.pid]);
    b.ask();
    await b.leased();
    expect(await Promise.race([pool.failed.catch(() => "failed"), "goes on"])).toBe("goes on");
  });

test("a process that no record has and that says nothing keeps all others out, by its id, until it has gone (PS6)", async () => {
  const there = new Machine();
  const silent = there.processes.start();
  await there.open();
  const b = there.run("b");
  const joined = b.join();
  await until(() => there.notices.some((text) => text.includes(`'${silent.pid}'`)), "its id to be told");
  expect(there.log.types).toEqual(["opened"]);
  await there.processes.end(silent);
  await joined;
  expect(there.log.types).toEqual(["opened", "admitted"]);
});

/** Of three openings the second is not in the record, which two runs follow; one holds the device, the other waits for it. */
async function withoutItsNewest(thirdAt: string) {
  vi.useFakeTimers({ toFake: ["Date"], now: new Date("2030-01-01T00:00:00Z") });
  closeAfterTest(() => vi.useRealTimers());
  const there = new Machine();
  const limits = { ...patient, turnMs: 1, beatLimitMs: 20_000 };
  const zero = await there.open(limits);
  const a = there.run("a");
  await a.join();
  a.ask();
  const { token } = await a.leased();
  await zero.close("it is killed");
  const first = await there.open(limits);
  const b = there.run("b");
  await b.join();
  b.ask();
  await a.wanted();
  await first.close("it is killed");
  expect(there.log.entries.splice(2, 1)[0]).toContain("opened");
  vi.setSystemTime(new Date(thirdAt));
  await there.open(limits);
  return { there, a, b, token };
}

test("the newest opening is lost: runs of the record join the next process, and nothing of theirs is lent twice (PS4, PD9)", async () => {
  const { a, b, token } = await withoutItsNewest("2030-01-01T00:00:09Z");
  await until(() => a.told.filter(({ type }) => type === "lease-wanted").length > 1, "the holder to be asked again");
  expect([a.lease?.token, b.lease]).toEqual([token, undefined]);
  a.release();
  expect((await b.leased()).token).toBeGreaterThan(token);
});

test("the newest opening is lost, and the clock stood still: who followed it is told, and ended (PS4, PS6)", async () => {
  const { there, a, b } = await withoutItsNewest("2030-01-01T00:00:00Z");
  for (const run of [a, b]) expect((await until(() => run.lost, "an end")).code).toBe("pool.ended");
  await until(() => there.processes.ended.length === 2, "the end of both");
  expect(b.lease).toBeUndefined();
});

test("signs of life of a run that has not joined again do not count (PD7, PD9)", () => {
  const limits = { ...patient, beatLimitMs: 100 };
  const state = new DevicePoolState(limits);
  const member = { priority: 0, weight: 1, devices: [{ id: "cpu:0", memoryMiB: 1 }] };
  state.handle({ type: "restore", run: "a", member, memoryMiB: { "cpu:0": 1 } }, 0);
  expect(state.handle({ type: "beat", run: "a" }, 99)).toEqual([]);
  expect(state.handle({ type: "tick" }, 100)).toMatchObject([{ type: "end", run: "a" }]);
});

test("a decided end is done by whoever has the pool next, and by nobody who has it no more (PS3)", async () => {
  const there = new Machine();
  await there.open({ ...patient, turnMs: 1, yieldMs: 1 });
  const [a, b] = [there.run("a"), there.run("b")];
  await Promise.all([a.join(), b.join()]);
  a.ask();
  await a.leased();
  b.ask();
  await until(() => there.log.types.includes("ends"), "the decision");
  await there.open();
  await until(() => there.processes.ended.includes(a.process.pid), "the end");
  await b.leased();
  const numEnds = there.log.types.filter((type) => type === "ends").length;
  expect([numEnds, there.log.types.at(-1)]).toEqual([3, "gone"]);
});

test("a word of a later process that nobody had does not end a pool, but the run that says it (PS3)", async () => {
  const there = new Machine();
  const pool = await there.open();
  const a = there.run("a");
  await a.join();
  const plane = there.connect();
  const [member] = plane.members("pool");
  const talk = { waits: false, from: 0, said: [], heard: 0, epoch: 2 ** 50, pool: crypto.randomUUID() };
  const asked = (run: string, process: RunProcess) =>
    plane.command(member!, "talk", { ...talk, run, process }, { timeoutMs: 30_000 });
  const elsewhere = { ...there.processes.start(), machine: "elsewhere/id/boot/pids" };
  await expect(asked("x", elsewhere)).rejects.toMatchObject({ code: "pool.refused" });
  const forger = there.processes.start();
  await expect(asked("forger", forger)).rejects.toMatchObject({ code: "pool.ended" });
  await until(() => there.processes.ended.includes(forger.pid), "its end");
  a.ask();
  await a.leased();
  expect(await Promise.race([pool.failed.catch(() => "failed"), "goes on"])).toBe("goes on");
});

test("the record of another machine, or of another user, is left alone, with what to do (PS7)", async () => {
  const there = new Machine();
  const a = await leftAlone(there);
  const { log, processes } = there;
  const open = (other: string) => {
    const plane = there.connect();
    const options = { name: "shared", plane, log: log.take(), limits: patient, onNotice: () => {} };
    return PoolService.open({ ...options, machine: other, processes: { ...processes, look: () => "gone" as const } });
  };
  for (const other of ["else/id/boot/pids", "here/id/boot/container", "here//later/pids"])
    await expect(open(other)).rejects.toMatchObject({
      code: "pool.taken",
      message: expect.stringContaining("treadle pool start"),
    });
  expect(log.types).toEqual(["opened", "admitted"]);
  await there.open();
  a.release();
  a.ask();
  await until(() => (a.lease?.token ?? 0) > 0 && a.told.length > 1, "the run to go on with its own pool");
  expect(a.lost).toBeUndefined();
});

test("a machine that has started again has none of the runs that it had (PS7)", async () => {
  const there = new Machine();
  await leftAlone(there);
  const { log } = there;
  const rebooted = new Machine();
  const options = { name: "shared", plane: rebooted.connect(), log: log.take(), limits: patient, onNotice: () => {} };
  const service = await PoolService.open({
    ...options,
    machine: machine.replace("boot", "later"),
    processes: rebooted.processes,
  });
  await until(() => log.types.includes("gone"), "the run to be forgotten");
  await service.close("the test is over");
});

test("a process that cannot be looked at counts as there: its devices are lent to nobody (PS2)", async () => {
  const there = new Machine();
  const a = await leftAlone(there);
  there.processes.otherwise = "unknown";
  await there.processes.end(a.process); // as seen from here: nothing can be said of it
  await there.open();
  const b = there.run("b");
  await b.join();
  b.ask();
  await new Promise((resolve) => setTimeout(resolve, 1000));
  expect([b.lease, there.log.types.includes("gone")]).toEqual([undefined, false]);
});
