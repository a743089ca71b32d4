/** A pool that any run joins over the control plane: who has the pool may change, and runs come and go. */
import {
  type ControlPlane,
  type DeviceLease,
  type RunLog,
  type RunProcess,
  RuntimeConfig,
  TreadleError,
} from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import { afterEach, expect, test } from "vitest";
import { until } from "../../../../test/support/cluster.ts";
import type { PoolLimits } from "../../src/pool/device-pool.ts";
import { openPoolLink } from "../../src/pool/plane-pool-link.ts";
import { PoolService } from "../../src/pool/pool-service.ts";
import { PoolClient } from "../../src/runner/nodes/pool-client.ts";

const machine = "here";
const never = 1_000_000_000;
const patient: PoolLimits = { residents: 2, turnMs: never, patienceMs: never, yieldMs: never, beatLimitMs: never };
const config = RuntimeConfig.parse({ cluster: { devices: 1 } });

const closings: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closings.splice(0).reverse()) await close();
});

/** As the servers keep it: whoever opened it last writes it. */
class SharedLog {
  readonly entries: string[] = [];
  #writer = 0;

  take(): RunLog {
    const own = ++this.#writer;
    const append = async (entry: string) => {
      if (own !== this.#writer) throw new TreadleError("run.locked", "another one has it");
      this.entries.push(entry);
    };
    return { entries: this.entries, append, close: async () => {} };
  }

  get types(): string[] {
    return this.entries.map((entry) => (JSON.parse(entry) as { type: string }).type);
  }
}

/** Processes that are there until they are ended. */
class Processes {
  readonly #there = new Set<string>();
  readonly ended: number[] = [];

  start(): RunProcess {
    const mark = crypto.randomUUID();
    this.#there.add(mark);
    return { machine, pid: this.#there.size, mark };
  }

  readonly isThere = ({ mark }: RunProcess) => this.#there.has(mark);

  readonly end = async (process: RunProcess) => {
    if (this.#there.delete(process.mark)) this.ended.push(process.pid);
  };
}

class Machine {
  readonly log = new SharedLog();
  readonly processes = new Processes();
  readonly #planes = localControlPlanes();

  async open(limits = patient, plane = this.#planes.connect()): Promise<PoolService> {
    const { processes } = this;
    const options = { name: "shared", plane, log: this.log.take(), limits, machine, processes, onNotice: () => {} };
    const service = await PoolService.open(options);
    closings.push(() => service.close("the test is over"));
    return service;
  }

  connect(): ControlPlane {
    return this.#planes.connect();
  }

  run(name: string, process = this.processes.start(), plane = this.connect()): Run {
    return new Run(name, process, plane);
  }
}

class Run {
  readonly name: string;
  readonly process: RunProcess;
  readonly told: { readonly type: string; readonly lease?: DeviceLease }[] = [];
  readonly notices: string[] = [];
  lost: TreadleError | undefined;
  readonly client: PoolClient;
  readonly close: () => Promise<void>;
  #acts = new Map<string, (effect: never) => void>();

  constructor(name: string, process: RunProcess, plane: ControlPlane) {
    this.name = name;
    this.process = process;
    const link = openPoolLink(plane, process, "shared");
    this.client = new PoolClient(link);
    this.client.onLost((error) => {
      this.lost = error;
    });
    this.client.onNotice((text) => this.notices.push(text));
    const loop = {
      on: (type: string, act: (effect: never) => void) => this.#acts.set(type, act),
      feed: (input: never) => this.told.push(input),
    };
    this.client.serve(loop as never);
    this.close = async () => {
      this.client.close();
      await link.close();
    };
    closings.push(this.close);
  }

  join = (): Promise<void> => this.client.join(config, this.name);

  ask(): void {
    this.#acts.get("ask-lease")?.({ devices: ["cpu:0"] } as never);
  }

  release(): void {
    this.#acts.get("release-lease")?.({ token: this.lease?.token } as never);
  }

  get lease(): DeviceLease | undefined {
    return this.told.findLast(({ type }) => type === "leased")?.lease;
  }

  leased = (): Promise<DeviceLease> => until(() => this.lease, `a lease of '${this.name}'`);
  wanted = () => until(() => this.told.some(({ type }) => type === "lease-wanted"), `'${this.name}' to be asked`);
}

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
  expect(second.epoch).toBe(2);
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
  const talk = { run: "a", process: there.processes.start(), waits: false, from: 0, said: [], heard: 0 };
  const asked = (epoch: number) => plane.command(member!, "talk", { ...talk, epoch }, { timeoutMs: 30_000 });
  expect(await asked(1)).toEqual({ from: 0, said: [], heard: 0 });
  await expect(asked(2)).rejects.toMatchObject({ code: "pool.taken" });
  await expect(first.failed).rejects.toMatchObject({ code: "pool.taken" });
  await expect(asked(1)).rejects.toMatchObject({ code: "pool.taken" });
});

test("a run that gives no sign of life is told, recorded, and ended with all of its processes (PD7, PS3)", async () => {
  const there = new Machine();
  await there.open({ ...patient, beatLimitMs: 3000 });
  const hung = there.run("hung");
  await hung.join();
  await hung.close();
  await until(() => there.log.types.includes("gone"), "its end");
  expect(there.log.types).toEqual(["opened", "admitted", "ends", "gone"]);
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
  expect(() => there.run("a")).toThrow("no pool 'shared' is there; these are: none");
  await there.open();
  await there.run("a").join();
  const refusal = (run: Run) => run.join().catch((error: TreadleError) => `${error.code}: ${error.message}`);
  expect(await refusal(there.run("a"))).toContain("pool.refused: run 'a' is in pool 'shared', by process '2'");
  expect(await refusal(there.run("b", { ...there.processes.start(), machine: "there" }))).toContain("is elsewhere");
  expect(await refusal(there.run("c", { machine, pid: 1, mark: crypto.randomUUID() }))).toContain("cannot see process");
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
  const talk = { run: "a", process: there.processes.start(), epoch: 1, waits: false, from: 0, said: [], heard: 0 };
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
