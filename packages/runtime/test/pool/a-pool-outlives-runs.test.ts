/** A pool that any run joins over the control plane: who has the pool may change, and runs come and go. */
import type { TreadleError } from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import { expect, test } from "vitest";
import { until } from "../../../../test/support/cluster.ts";
import { config, Machine, machine, patient, type Run } from "./pool-machine.ts";

test("runs join, take turns, and leave; a device is free when nothing of its run is left (PS2, PS5)", async () => {
  const there = new Machine();
  await there.open();
  const [a, b] = [there.run("a"), there.run("b")];
  await Promise.all([a.join(), b.join()]);
  a.ask();
  await a.leased();
  b.ask();
  await a.wanted();
  expect(b.lease).toBeUndefined();
  a.release();
  await b.leased();
  a.ask();
  await b.wanted();
  await b.close();
  await there.processes.end(b.process);
  await until(() => (a.lease?.token ?? 0) > (b.lease?.token ?? 0), "the devices of the run that has gone");
  await until(() => there.log.types.includes("gone"), "its end to be recorded");
  expect(there.log.types.sort()).toEqual(["admitted", "admitted", "gone", "opened"]);
});

test("the pool is gone and comes back: a run keeps what it has, another waits for that, and both go on (PS4, PD9)", async () => {
  const there = new Machine();
  const first = await there.open();
  const [a, b] = [there.run("a"), there.run("b")];
  await Promise.all([a.join(), b.join()]);
  a.ask();
  const { token } = await a.leased();
  b.ask();
  await a.wanted();
  await first.close("it is killed");
  const numTold = a.told.length;
  const second = await there.open();
  expect(second.epoch).toBeGreaterThan(first.epoch);
  await until(() => a.told.length > numTold, "the run to be asked again, for the one that waits");
  expect([a.lease?.token, b.lease]).toEqual([token, undefined]);
  a.release();
  expect((await b.leased()).token).toBeGreaterThan(token);
  expect([a.lost, b.lost]).toEqual([undefined, undefined]);
});

test("what is released and asked for while nobody has the pool is known to whoever has it next (PD9)", async () => {
  const there = new Machine();
  const first = await there.open();
  const [a, b] = [there.run("a"), there.run("b")];
  await Promise.all([a.join(), b.join()]);
  a.ask();
  const { token } = await a.leased();
  await first.close("it is killed");
  a.release();
  b.ask();
  await there.open();
  expect((await b.leased()).token).toBeGreaterThan(token);
});

test("beyond a partition another process has the pool: the first admits and ends nobody any more, and ends (PS3)", async () => {
  const there = new Machine();
  const first = await there.open();
  const a = there.run("a");
  await a.join();
  a.ask();
  await a.leased();
  const beyond = localControlPlanes();
  await there.open(patient, beyond.connect());
  const late = there.run("late");
  let isAdmitted = false;
  void late.join().then(
    () => {
      isAdmitted = true;
    },
    () => {},
  );
  await expect(first.failed).rejects.toMatchObject({ code: "pool.taken" });
  const other = there.run("other", there.processes.start(), beyond.connect());
  await other.join();
  other.ask();
  const waiting = await until(
    async () => there.log.types.filter((type) => type === "admitted").length === 2,
    "the other to be recorded",
  );
  expect([waiting, isAdmitted, other.lease]).toEqual([true, false, undefined]);
  expect(there.processes.ended).toEqual([]);
});

test("a process that had the pool ends as soon as a run tells it of a later one, and nothing is heard from it (PS4)", async () => {
  const there = new Machine();
  const first = await there.open();
  const plane = there.connect();
  const [member] = plane.members("pool");
  const beyond = localControlPlanes();
  await there.open(patient, beyond.connect());
  const [later] = beyond.connect().members("pool");
  const talk = { run: "a", process: there.processes.start(), waits: false, from: 0, said: [], heard: 0 };
  const asked = (followed: unknown) => {
    const { epoch, id } = followed as { epoch: number; id: string };
    return plane.command(member!, "talk", { ...talk, epoch, pool: id }, { timeoutMs: 30_000 });
  };
  expect(await asked(member!.body)).toEqual({ from: 0, said: [], heard: 0 });
  await expect(asked(later!.body)).rejects.toMatchObject({ code: "pool.taken" });
  await expect(first.failed).rejects.toMatchObject({ code: "pool.taken" });
  await expect(asked(member!.body)).rejects.toMatchObject({ code: "pool.taken" });
  expect(there.processes.ended).toEqual([]);
});

test("a run that gives no sign of life is told, recorded, and ended with all of its processes (PD7, PS3)", async () => {
  const there = new Machine();
  await there.open({ ...patient, beatLimitMs: 3000 });
  const hung = there.run("hung");
  await hung.join();
  await hung.close();
  await until(() => there.log.types.includes("gone"), "its end");
  expect(there.log.types).toEqual(["opened", "admitted", "ends", "ends", "gone"]);
  expect(there.processes.ended).toEqual([hung.process.pid]);
});

test("a run that does not yield is ended by name, and learns why (PD6)", async () => {
  const there = new Machine();
  await there.open({ ...patient, turnMs: 1, yieldMs: 1 });
  const [a, b] = [there.run("a"), there.run("b")];
  await Promise.all([a.join(), b.join()]);
  a.ask();
  await a.leased();
  b.ask();
  await until(() => a.lost, "the end of the run");
  expect(a.lost).toMatchObject({ code: "pool.ended", message: expect.stringContaining("run 'a' was told to yield") });
  await b.leased();
  expect(there.processes.ended).toEqual([a.process.pid]);
});

test("what cannot take part is refused, with what to do: a name in use, another machine, an unseen process, no pool", async () => {
  const there = new Machine();
  const early = there.processes.start();
  expect(() => there.run("a", early)).toThrow("no pool 'shared' is there; these are: none");
  await there.processes.end(early);
  await there.open();
  await there.run("a").join();
  const refusal = (run: Run) => run.join().catch((error: TreadleError) => `${error.code}: ${error.message}`);
  expect(await refusal(there.run("a"))).toContain("pool.refused: run 'a' is in pool 'shared', by process '1'");
  expect(await refusal(there.run("b", { ...there.processes.start(), machine: "there/id/boot/pids" }))).toContain(
    "is elsewhere",
  );
  expect(await refusal(there.run("c", { machine, pid: 1, startedTicks: 1, mark: crypto.randomUUID() }))).toContain(
    "cannot see process",
  );
  await expect(
    there.run("d").client.join({ ...config, pool: { ...config.pool, memoryPerDeviceMiB: 1e12 } }, "d"),
  ).rejects.toMatchObject({
    code: "pool.refused",
    message: expect.stringContaining("less than pool.memoryPerDeviceMiB"),
  });
});

test("a run begins again under its name when its process has gone", async () => {
  const there = new Machine();
  await there.open();
  const before = there.run("a");
  await before.join();
  before.ask();
  await before.leased();
  await before.close();
  await there.processes.end(before.process);
  const again = there.run("a");
  await again.join();
  again.ask();
  expect((await again.leased()).token).toBeGreaterThan(before.lease?.token ?? 0);
});

test("messages that are none are refused before anybody acts on them", async () => {
  const there = new Machine();
  await there.open();
  const plane = there.connect();
  const [member] = plane.members("pool");
  const talk = {
    run: "a",
    process: there.processes.start(),
    epoch: 1,
    pool: crypto.randomUUID(),
    waits: false,
    from: 0,
    said: [],
    heard: 0,
  };
  const wrong = [
    {},
    { ...talk, run: "a.b" },
    { ...talk, from: -1 },
    { ...talk, said: [{ type: "release", token: 0 }] },
    { ...talk, said: [{ type: "request", devices: [] }] },
    { ...talk, said: Array.from({ length: 10_001 }, () => ({ type: "beat" })) },
    { ...talk, process: { ...talk.process, mark: "../x" } },
    { ...talk, process: { ...talk.process, pid: -1 } },
  ];
  for (const body of wrong)
    await expect(plane.command(member!, "talk", body, { timeoutMs: 30_000 })).rejects.toMatchObject({
      code: "link.protocol",
    });
});
