import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type Chunk, CpuManager, GpuManager, parseRetryAfter, QuotaManager } from "../src/index.ts";

const request = (actionId: string, trajectory?: string) => ({ actionId, trajectory, minimum: 1 });

describe("quota manager", () => {
  const windowTypes = ["fixed", "sliding", "bucket"] as const;
  const windowOf = (type: (typeof windowTypes)[number]) =>
    new QuotaManager("search", { windows: [{ type, limit: 3, periodMs: 1000 }] });

  test("never more than the limit starts in any stretch of a sliding period, or any fixed period", () => {
    fc.assert(
      fc.property(
        fc.constantFrom("fixed" as const, "sliding" as const),
        fc.array(fc.integer({ min: 0, max: 400 }), { maxLength: 60 }),
        (type, gaps) => {
          const quota = windowOf(type);
          const starts: number[] = [];
          let now = 0;
          gaps.forEach((gap, i) => {
            now += gap;
            if (quota.acquire("search", request(`a${i}`), 1, now)) starts.push(now);
          });
          for (const at of starts) {
            const same = (t: number) =>
              type === "fixed" ? Math.floor(t / 1000) === Math.floor(at / 1000) : t > at - 1000 && t <= at;
            expect(starts.filter(same).length).toBeLessThanOrEqual(3);
          }
        },
      ),
      { numRuns: 200 },
    );
  });

  test("a bucket gives its burst at once and then its rate", () => {
    const quota = windowOf("bucket");
    const starts: number[] = [];
    for (let now = 0, i = 0; now <= 4000; now += 50)
      while (quota.acquire("search", request(`a${i++}`), 1, now)) starts.push(now);
    expect(starts.filter((t) => t === 0).length).toBe(3);
    expect(starts.length).toBe(3 + 12);
  });

  test.each(windowTypes)("%s: something is free when nextChangeMs says so, and not before", (type) => {
    const quota = windowOf(type);
    for (let i = 0; i < 3; i++) quota.acquire("search", request(`a${i}`), 1, 10 * i);
    const wait = quota.nextChangeMs(20)!;
    expect(quota.pools(20 + wait - 2).get("search")!.free).toBeLessThan(1);
    expect(quota.pools(20 + wait).get("search")!.free).toBeGreaterThan(0);
  });

  test("concurrency counts what runs", () => {
    const quota = new QuotaManager("search", { concurrency: 2 });
    expect([1, 2, 3].map((i) => quota.acquire("search", request(`a${i}`), 1, 0) !== undefined)).toEqual([
      true,
      true,
      false,
    ]);
    quota.release("a1");
    expect(quota.pools(0).get("search")!.free).toBe(1);
    quota.release("a1");
    expect(quota.pools(0).get("search")!.free).toBe(1);
  });

  test("a refusal stops calls until Retry-After and halves concurrency; successes win it back", () => {
    const quota = new QuotaManager("search", { concurrency: 8 });
    for (let i = 0; i < 8; i++) quota.acquire("search", request(`a${i}`), 1, 0);
    quota.throttled(100, 5000);
    quota.throttled(101, 5000);
    expect(quota.concurrency).toBe(4);
    for (let i = 0; i < 8; i++) quota.release(`a${i}`);
    expect(quota.pools(5099).get("search")!.free).toBe(0);
    expect(quota.nextChangeMs(5099)).toBe(2);
    expect(quota.pools(5101).get("search")!.free).toBe(4);
    for (let i = 0; i < 4 + 5 + 6 + 7; i++) quota.succeeded();
    expect(quota.concurrency).toBe(8);
  });

  test("a refusal halves the rate, and rounds of successes win it back", () => {
    const all = (quota: QuotaManager, now: number): number => {
      let count = 0;
      while (quota.acquire("search", request(`${now}/${count}`), 1, now)) count++;
      return count;
    };
    for (const type of windowTypes) {
      const quota = new QuotaManager("search", { windows: [{ type, limit: 8, periodMs: 1000 }] });
      expect(all(quota, 0)).toBe(8);
      quota.throttled(100, 1900);
      quota.throttled(101, 1900);
      expect([quota.rate, all(quota, 1999)]).toEqual([0.5, 0]);
      // A bucket has been emptied, and fills no faster than the service lets it.
      expect([all(quota, 2001), all(quota, 3001)]).toEqual(type === "bucket" ? [0, 4] : [4, 4]);
      for (let round = 0; round < 8; round++) {
        expect(quota.rate).toBe(0.5 + round / 16);
        for (let i = 0; i < 4 + round / 2; i++) quota.succeeded();
      }
      expect(quota.rate).toBe(1);
      expect(all(quota, 9001)).toBe(8);
    }
  });

  test("QM1 whatever is refused, the largest call starts when nothing else runs, and pools and acquire agree", () => {
    const step = fc.record({
      act: fc.constantFrom("refuse", "succeed", "release", "wait"),
      ms: fc.integer({ min: 1, max: 400 }),
    });
    const window = fc.record({
      type: fc.constantFrom(...windowTypes),
      limit: fc.integer({ min: 4, max: 9 }),
      periodMs: fc.constant(1000),
    });
    fc.assert(
      fc.property(
        fc.array(window, { maxLength: 2 }),
        fc.integer({ min: 1, max: 9 }),
        fc.array(step, { maxLength: 40 }),
        (windows, concurrency, steps) => {
          const quota = new QuotaManager("search", { concurrency, windows });
          let now = 0;
          const held: string[] = [];
          const take = (id: string, minimum: number): boolean => {
            quota.bind({ actionId: id, minimum }, now);
            const { free } = quota.pools(now).get("search")!;
            const isGranted = quota.acquire("search", request(id), minimum, now) !== undefined;
            expect(isGranted).toBe(minimum <= free + 1e-9);
            if (isGranted) held.push(id);
            return isGranted;
          };
          for (const [i, { act, ms }] of steps.entries()) {
            now += ms;
            take(`s${i}`, 1 + (i % quota.capacity));
            if (act === "refuse") quota.throttled(now, ms);
            if (act === "succeed") quota.succeeded();
            if (act === "release") for (const id of held.splice(0)) quota.release(id);
          }
          for (const id of held.splice(0)) quota.release(id);
          for (let tries = 0; !take("largest", quota.capacity); tries++) {
            expect(tries).toBeLessThan(20);
            const wait = quota.nextChangeMs(now, quota.capacity);
            expect(wait).toBeGreaterThan(0);
            now += Math.ceil(wait!);
          }
        },
      ),
      { numRuns: 300 },
    );
  });

  test("without Retry-After the wait doubles", () => {
    const quota = new QuotaManager("search", { concurrency: 8 });
    let now = 0;
    const waits = [1, 2, 3].map(() => {
      quota.throttled(now);
      const wait = quota.nextChangeMs(now)!;
      now += wait;
      return wait;
    });
    expect(waits).toEqual([1000, 2000, 4000]);
  });

  test("calls that are refused together wait once, unless one is told to wait longer", () => {
    const quota = new QuotaManager("search", { concurrency: 8 });
    expect(quota.throttled(0)).toBe(1000);
    expect(quota.throttled(10)).toBe(990);
    expect(quota.throttled(20, 500)).toBe(980);
    expect(quota.throttled(30, 4000)).toBe(4000);
    expect(quota.throttled(4030)).toBe(2000);
  });

  test("Retry-After is seconds or a date", () => {
    const now = Date.parse("Wed, 21 Oct 2026 07:28:00 GMT");
    const read = (header: string | null) => parseRetryAfter(header, now);
    expect(["3", "0.5", " 7 ", "Wed, 21 Oct 2026 07:28:09 GMT"].map(read)).toEqual([3000, 500, 7000, 9000]);
    // A JavaScript number is no time, and what Date.parse makes a year of is no date.
    const others = ["soon", "soon 5", "", null, "-1", "+5", "1e3", "0x10", "0b1", "1.", ".5", "Infinity"];
    expect(others.filter((header) => read(header) !== undefined)).toEqual([]);
  });
});

describe("CPU manager", () => {
  const twoNuma = {
    id: "n0",
    numa: [
      [0, 1, 2, 3],
      [4, 5, 6, 7],
    ],
    memoryBytes: 100,
  };

  test("MG1 MG2 cores are exclusive and what is free can be had, over random histories", () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.integer({ min: 1, max: 5 }), fc.nat(3)), { maxLength: 40 }), (steps) => {
        const cpu = new CpuManager({ nodes: [twoNuma] });
        const held = new Map<string, readonly number[]>();
        steps.forEach(([units, release], i) => {
          const free = cpu.pools().get("cpu@n0")!.free;
          const grant = cpu.acquire("cpu@n0", request(`a${i}`), units);
          expect(grant !== undefined).toBe(units <= free);
          if (grant) {
            expect(grant.cores!.length).toBe(units);
            for (const cores of held.values()) expect(cores.some((c) => grant.cores!.includes(c))).toBe(false);
            held.set(`a${i}`, grant.cores!);
          }
          const oldest = [...held.keys()][0];
          if (release === 0 && oldest !== undefined) {
            cpu.release(oldest);
            held.delete(oldest);
          }
        });
        expect(cpu.pools().get("cpu@n0")!.free).toBe(8 - [...held.values()].flat().length);
      }),
      { numRuns: 100 },
    );
  });

  test("cores come from one NUMA node where one has enough, the fullest that does", () => {
    const cpu = new CpuManager({ nodes: [twoNuma] });
    cpu.acquire("cpu@n0", request("a"), 2);
    expect(cpu.acquire("cpu@n0", request("b"), 2)!.cores).toEqual([2, 3]);
    expect(cpu.acquire("cpu@n0", request("c"), 3)!.numaNodes).toEqual([1]);
    cpu.release("a");
    expect(cpu.acquire("cpu@n0", request("d"), 3)!.numaNodes).toEqual([0, 1]);
  });

  test("a trajectory goes to the node with the least share of memory reserved, and stays", () => {
    const cpu = new CpuManager({ nodes: [twoNuma, { ...twoNuma, id: "n1" }], trajectoryMemoryBytes: 40 });
    expect(["t1", "t2", "t3"].map((t) => cpu.bind(request("a", t)))).toEqual(["cpu@n0", "cpu@n1", "cpu@n0"]);
    cpu.acquire("cpu@n0", request("full"), 8);
    expect(cpu.bind(request("again", "t1"))).toBe("cpu@n0");
    expect(cpu.bind(request("b", "t4"))).toBe("cpu@n1");
    expect(cpu.bind(request("b", "t5"))).toBeUndefined();
    cpu.endTrajectory("t2");
    expect(cpu.bind(request("b", "t5"))).toBe("cpu@n1");
  });

  test("overcommit reserves beyond the memory, and the furthest above its reservation goes first when it runs out", () => {
    const cpu = new CpuManager({ nodes: [twoNuma], overcommit: 1.5, trajectoryMemoryBytes: 50 });
    expect(["t1", "t2", "t3", "t4"].map((t) => cpu.bind(request("a", t)))).toEqual([
      "cpu@n0",
      "cpu@n0",
      "cpu@n0",
      undefined,
    ]);
    expect(
      cpu.outOfMemory(
        "n0",
        new Map([
          ["t1", 30],
          ["t2", 60],
          ["t3", 10],
        ]),
      ),
    ).toEqual([]);
    expect(
      cpu.outOfMemory(
        "n0",
        new Map([
          ["t1", 45],
          ["t2", 70],
          ["t3", 10],
        ]),
      ),
    ).toEqual(["t2"]);
  });

  test("MG1 CN1 whatever nodes come and go: no core is held twice, none of a node that is away, and what is reserved is theirs who are there", () => {
    const ids = ["n0", "n1", "n2"] as const;
    const op = fc.record({
      act: fc.constantFrom("join", "leave", "bind", "place", "acquire", "acquire", "release", "end"),
      node: fc.constantFrom(...ids),
      trajectory: fc.integer({ min: 0, max: 5 }),
      cores: fc.integer({ min: 1, max: 4 }),
    });
    fc.assert(
      fc.property(fc.array(op, { maxLength: 60 }), (ops) => {
        const cpu = new CpuManager({ nodes: [], overcommit: 1.5 });
        /** cores by node that is there, and what is held of them */
        const present = new Map<string, { cores: number; held: Map<string, readonly number[]> }>();
        const bytesOf = (trajectory: number) => 10 + 7 * trajectory;
        const only = (trajectory: number) => (trajectory === 5 ? "n1" : undefined);
        const open = new Set<number>();
        let most = 0;
        const opened = (trajectory: number): string => {
          if (!open.has(trajectory)) cpu.openTrajectory(`t${trajectory}`, bytesOf(trajectory), only(trajectory));
          open.add(trajectory);
          return `t${trajectory}`;
        };
        cpu.join({ id: "n0", numa: [[0, 1, 2, 3]], memoryBytes: 100 });
        present.set("n0", { cores: 4, held: new Map() });
        most = 4;
        ops.forEach(({ act, node, trajectory, cores }, i) => {
          if (act === "join") {
            cpu.join({ id: node, numa: [Array.from({ length: cores }, (_, core) => core)], memoryBytes: 100 });
            present.set(node, { cores, held: new Map() });
          }
          if (act === "leave") {
            cpu.leave(node);
            present.delete(node);
          }
          if (act === "bind") {
            const pool = cpu.bind({ actionId: `b${i}`, trajectory: opened(trajectory), minimum: cores });
            if (pool !== undefined) expect(present.has(pool.slice("cpu@".length))).toBe(true);
          }
          if (act === "place") {
            const node = cpu.place(opened(trajectory));
            if (node !== undefined) expect(present.has(node)).toBe(true);
          }
          if (act === "acquire") {
            const grant = cpu.acquire(`cpu@${node}`, request(`a${i}`), cores);
            const there = present.get(node);
            const free = there === undefined ? -1 : there.cores - [...there.held.values()].flat().length;
            expect(grant !== undefined).toBe(cores <= free);
            if (grant === undefined) return;
            const taken = [...there!.held.values()].flat();
            expect(grant.cores!.filter((core) => taken.includes(core))).toEqual([]);
            there!.held.set(`a${i}`, grant.cores!);
          }
          // Also of what was granted by a node that has left since, or come again.
          if (act === "release") {
            const ofOld = `a${trajectory}`;
            cpu.release(ofOld);
            for (const { held } of present.values()) held.delete(ofOld);
          }
          if (act === "end") {
            cpu.endTrajectory(`t${trajectory}`);
            open.delete(trajectory);
          }
          for (const one of present.values()) most = Math.max(most, one.cores);
          expect([...cpu.pools()].map(([pool, { free }]) => [pool, free])).toEqual(
            expect.arrayContaining(
              [...present].map(([id, one]) => [`cpu@${id}`, one.cores - [...one.held.values()].flat().length]),
            ),
          );
          expect(cpu.pools().size).toBe(present.size);
          const reserved = new Map<string, number>(ids.map((id) => [`cpu@${id}`, 0]));
          for (const each of open) {
            const home = cpu.home(`t${each}`);
            if (home === undefined) continue;
            expect(present.has(home.slice("cpu@".length))).toBe(true);
            reserved.set(home, reserved.get(home)! + bytesOf(each));
          }
          for (const [id, { reservedBytes }] of cpu.load()) {
            expect(reservedBytes).toBe(reserved.get(`cpu@${id}`));
            expect(reservedBytes).toBeLessThanOrEqual(150); // with what may be overcommitted
          }
          expect(cpu.capacity).toBeLessThanOrEqual(most);
        });
      }),
      { numRuns: 300 },
    );
  });

  test("CN1 what has to be on one node waits for it while it is there, and goes elsewhere when it is not", () => {
    const cpu = new CpuManager({ nodes: [twoNuma, { ...twoNuma, id: "n1" }], trajectoryMemoryBytes: 60 });
    cpu.bind(request("a", "first"));
    cpu.openTrajectory("fork", 60, "n0");
    expect([cpu.bind(request("b", "fork")), cpu.place("fork")]).toEqual([undefined, undefined]);
    cpu.openTrajectory("late", 60, "n0");
    cpu.leave("n0");
    expect(cpu.bind(request("c", "late"))).toBe("cpu@n1");
    expect(cpu.load().get("n0")).toMatchObject({ reservedBytes: 0, held: 0 });
    expect(cpu.place("never opened")).toBeUndefined();
  });
});

describe("GPU manager", () => {
  const service = (memoryBytes: number) => [1, 2, 4, 8].map((dop) => ({ dop, memoryBytes, restoreSeconds: 3 }));
  const cluster = (nodes = 1) => ({
    nodes,
    memoryBytesPerDevice: 100,
    services: { judge: service(60), teacher: service(60), small: service(30) },
  });
  const ask = (actionId: string, of: string) => ({ ...request(actionId), service: of });
  const start = (gpu: GpuManager, id: string, of: string, units: number) => {
    const { devices } = gpu.acquire("gpu", ask(id, of), units)!;
    expect(gpu.verifyFreed(id, new Array<number>(devices!.chunk.size).fill(100))).toBe(true);
    return devices!;
  };

  test("MG1 MG2 GP1 GP2 intervals are aligned and exclusive, and residents fit, over random histories", () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.constantFrom(1, 2, 4, 8), fc.constantFrom("judge", "teacher", "small"), fc.nat(2)), {
          maxLength: 50,
        }),
        (steps) => {
          const gpu = new GpuManager(cluster(2));
          const held = new Map<string, Chunk>();
          steps.forEach(([units, of, release], i) => {
            const room = gpu
              .pools()
              .get("gpu")!
              .chunks.some((c) => c.size >= units);
            const grant = gpu.acquire("gpu", ask(`a${i}`, of), units);
            expect(grant !== undefined).toBe(room);
            if (grant) {
              const { chunk } = grant.devices!;
              expect([chunk.size, chunk.start % units]).toEqual([units, 0]);
              for (const other of held.values())
                expect(
                  other.node === chunk.node &&
                    other.start < chunk.start + chunk.size &&
                    chunk.start < other.start + other.size,
                ).toBe(false);
              expect(gpu.verifyFreed(`a${i}`, new Array<number>(units).fill(100))).toBe(true);
              held.set(`a${i}`, chunk);
            }
            for (let node = 0; node < 2; node++)
              for (let device = 0; device < 8; device++) {
                const bytes = gpu
                  .residents()
                  .filter(
                    (r) => r.chunk.node === node && r.chunk.start <= device && device < r.chunk.start + r.chunk.size,
                  );
                expect(bytes.reduce((sum, r) => sum + (r.service === "small" ? 30 : 60), 0)).toBeLessThanOrEqual(100);
              }
            const oldest = [...held.keys()][0];
            if (release === 0 && oldest !== undefined) {
              gpu.release(oldest);
              held.delete(oldest);
            }
          });
          for (const id of held.keys()) gpu.release(id);
          expect([...gpu.pools().get("gpu")!.chunks].sort((a, b) => a.node - b.node)).toEqual([
            { node: 0, start: 0, size: 8 },
            { node: 1, start: 0, size: 8 },
          ]);
        },
      ),
      { numRuns: 100 },
    );
  });

  test("an action goes where its service is resident, without a restore; another degree is another service", () => {
    const gpu = new GpuManager(cluster());
    expect(gpu.restoreSeconds("judge", 2)).toBe(3);
    const first = start(gpu, "a", "judge", 2);
    const second = start(gpu, "b", "teacher", 2);
    gpu.release("a");
    gpu.release("b");
    expect(gpu.restoreSeconds("judge", 2)).toBe(0);
    expect(gpu.restoreSeconds("judge", 4)).toBe(3);
    expect(start(gpu, "c", "teacher", 2)).toMatchObject({ chunk: second.chunk, restore: false, evict: [] });
    expect(start(gpu, "d", "judge", 2)).toMatchObject({ chunk: first.chunk, restore: false });
  });

  test("GP4 the least recently used goes first, and only as many as needed", () => {
    const gpu = new GpuManager({ ...cluster(), devicesPerNode: 1 });
    for (const of of ["small", "judge"]) {
      start(gpu, of, of, 1);
      gpu.release(of);
    }
    start(gpu, "again", "small", 1);
    gpu.release("again");
    expect(gpu.acquire("gpu", ask("t", "teacher"), 1)!.devices!.evict.map((r) => r.service)).toEqual(["judge"]);
  });

  test("GP3 nothing starts before the memory it needs was seen free", () => {
    const gpu = new GpuManager(cluster());
    start(gpu, "a", "judge", 8);
    gpu.release("a");
    const grant = gpu.acquire("gpu", ask("b", "teacher"), 8)!;
    expect(grant.devices).toMatchObject({ restore: true, neededBytes: 60, evict: [{ service: "judge", dop: 8 }] });
    expect(gpu.verifyFreed("b", [100, 100, 100, 100, 100, 100, 100, 59])).toBe(false);
    expect(gpu.verifyFreed("b", [100])).toBe(false);
    expect(gpu.residents()).toEqual([]);
    expect(gpu.verifyFreed("b", new Array<number>(8).fill(60))).toBe(true);
    expect(gpu.residents()).toMatchObject([{ service: "teacher" }]);
  });

  test("GP5 what a restore is taken to last is what earlier ones of its way have, wherever it would go, over random histories", () => {
    const dops = [1, 2, 4] as const;
    const services = {
      judge: dops.map((dop) => ({ dop, memoryBytes: 60, restoreSeconds: 3 })),
      coach: dops.map((dop) => ({ dop, memoryBytes: 60 })),
    };
    const step = fc.record({
      of: fc.constantFrom("judge", "coach"),
      dop: fc.constantFrom(...dops),
      seconds: fc.integer({ min: 1, max: 100 }),
      ends: fc.constantFrom("restored", "replaced", "fails"),
      sleeps: fc.boolean(),
      release: fc.nat(2),
      dies: fc.nat(9),
    });
    const seen = { awake: 0, asleep: 0, started: 0, guessed: 0 };
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 60 }), (steps) => {
        const gpu = new GpuManager({ nodes: 1, devicesPerNode: 4, memoryBytesPerDevice: 100, services });
        const lasted = new Map<string, number[]>();
        const asleep = new Set<string>();
        const held: string[] = [];
        const place = (dop: number, of: string, { start }: Chunk): string => `${of}/${dop}@${start}`;
        // The first 16 count alike; of later ones each takes a sixteenth of the mean.
        const meanOf = (key: string): number | undefined => {
          const all = lasted.get(key);
          if (all === undefined) return undefined;
          const first = all.slice(0, 16);
          const later = all.slice(16);
          const mean = first.reduce((sum, seconds) => sum + seconds, 0) / first.length;
          return (
            later.reduce((sum, seconds, i) => sum + (seconds / 16) * (15 / 16) ** (later.length - 1 - i), 0) +
            mean * (15 / 16) ** later.length
          );
        };
        for (const [i, { of, dop, seconds, ends, sleeps, release, dies }] of steps.entries()) {
          const expected = gpu.restoreSeconds(of, dop);
          const id = `a${i}`;
          const devices = gpu.acquire("gpu", ask(id, of), dop)?.devices;
          if (devices !== undefined) {
            held.push(id);
            const here = place(dop, of, devices.chunk);
            const wakes = asleep.has(here);
            const started = meanOf(`started ${of}/${dop}`) ?? (of === "judge" ? 3 : 0);
            const known = wakes ? (meanOf(`woken ${of}/${dop}`) ?? started) : started;
            expect(expected).toBeCloseTo(devices.restore ? known : 0, 9);
            seen[
              !devices.restore ? "awake" : wakes ? "asleep" : lasted.has(`started ${of}/${dop}`) ? "started" : "guessed"
            ]++;
            for (const instance of devices.evict) {
              gpu.evicted(instance, sleeps);
              if (sleeps) asleep.add(place(instance.dop, instance.service, instance.chunk));
            }
            if (devices.restore) {
              const instance = gpu.instanceOf(id)!;
              expect(gpu.verifyFreed(id, new Array<number>(dop).fill(100))).toBe(true);
              asleep.delete(here);
              if (ends === "fails") gpu.lost(instance);
              else if (ends === "replaced") gpu.restored(instance, "otherwise", seconds);
              else {
                const way = wakes ? "woken" : "started";
                gpu.restored(instance, way, seconds);
                lasted.set(`${way} ${of}/${dop}`, [...(lasted.get(`${way} ${of}/${dop}`) ?? []), seconds]);
              }
            }
          }
          // One that sleeps dies.
          const [first] = asleep;
          if (dies === 0 && first !== undefined) {
            const [, service, size, start] = /^(.*)\/(.*)@(.*)$/.exec(first) as unknown as [
              string,
              string,
              string,
              string,
            ];
            gpu.lost({ service, dop: Number(size), chunk: { node: 0, start: Number(start), size: Number(size) } });
            asleep.delete(first);
          }
          if (release > 0) gpu.release(held.shift() ?? "");
        }
        for (const { service, dop, startSeconds, wakeSeconds } of gpu.restoreCosts()) {
          expect(startSeconds ?? -1).toBeCloseTo(meanOf(`started ${service}/${dop}`) ?? -1, 9);
          expect(wakeSeconds ?? -1).toBeCloseTo(meanOf(`woken ${service}/${dop}`) ?? -1, 9);
        }
      }),
      { numRuns: 300 },
    );
    for (const times of Object.values(seen)) expect(times).toBeGreaterThan(0);
  });

  test("a lost service is restored again", () => {
    const gpu = new GpuManager(cluster());
    const { chunk } = start(gpu, "a", "judge", 4);
    gpu.release("a");
    gpu.lost({ service: "judge", dop: 4, chunk });
    expect(gpu.restoreSeconds("judge", 4)).toBe(3);
  });
});
