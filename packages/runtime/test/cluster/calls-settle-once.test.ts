import { type CallReply, type CallRequest, type Peer, TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { ChannelHomes } from "../../src/channel/channel-homes.ts";
import type { Component } from "../../src/cluster/component.ts";
import { GroupCalls } from "../../src/cluster/group-calls.ts";
import { type PendingCall, Rank } from "../../src/cluster/rank.ts";
import type { LockService } from "../../src/device-lock/lock-service.ts";
import type { CallHandle } from "../../src/group/handle.ts";

type Asked = { request: CallRequest; resolve: (reply: CallReply) => void; reject: (error: unknown) => void };

/** A worker process: remembers what it was asked, in order, and answers when told. */
class FakeProcess {
  readonly asked: Asked[] = [];
  readonly open: Asked[] = [];
  readonly closedWith: unknown[] = [];
  readonly peer: Peer;

  constructor() {
    this.peer = {
      link: { close: async (cause: unknown) => void this.closedWith.push(cause) },
      request: (_method: string, request: CallRequest, options?: { signal?: AbortSignal }) =>
        new Promise((resolve, reject) => {
          const asked: Asked = { request, resolve, reject };
          const abort = () => reject(new TreadleError("call.cancelled", "cancelled"));
          if (options?.signal?.aborted) return abort();
          options?.signal?.addEventListener("abort", abort);
          this.asked.push(asked);
          this.open.push(asked);
        }),
      notify: () => {},
      handle: () => {},
    } as unknown as Peer;
  }

  reply(at = 0, more: Partial<CallReply> = {}): void {
    const [asked] = this.open.splice(at, 1);
    asked?.resolve({ value: asked.request.call, durationMs: 1, timers: {}, ...more });
  }
  fail(error: unknown, at = 0): void {
    this.open.splice(at, 1)[0]?.reject(error);
  }
  die(): void {
    for (const { reject } of this.open.splice(0)) reject(new TreadleError("link.closed", "gone"));
  }
}

const turns = async (num = 4) => {
  for (let i = 0; i < num; i++) await new Promise<void>((resolve) => setImmediate(resolve));
};

function world(restart: "rank" | "group", size: number, replays: readonly string[] = []) {
  const registered = new Set<string>();
  const startedOver: string[] = [];
  const closed: { call: string; ok: boolean }[] = [];
  const failures: unknown[] = [];
  const saved: string[] = [];
  const homes = {
    open: (call: string) => void registered.add(call),
    close: (call: string, outcome: { ok: boolean }) => {
      if (registered.delete(call)) closed.push({ call, ok: outcome.ok });
    },
    startOver: (call: string) => void startedOver.push(call),
  } as unknown as ChannelHomes;
  const locks = { openCall: () => {}, closeCall: () => {}, startOver: () => {} } as unknown as LockService;
  const calls = new GroupCalls({
    homes,
    locks,
    timeoutMs: 1e9,
    groupSize: () => 1,
    savePath: (component, sequence) => `${component}.${sequence}`,
    onSaved: (component, path, step) => saved.push(`${component}:${path}:${step}`),
    onObserved: () => {},
    onProgress: () => {},
    onFailure: (error) => failures.push(error),
  });
  const component: Component = {
    name: "actor",
    workerClass: { name: "ActorWorker", restart, concurrent: [], saves: ["train"], replays } as never,
    config: {},
    options: {},
    module: "",
    exportName: "",
    methods: [],
  };
  const retries: { rank: Rank; call: PendingCall; goOn: () => void; giveUp: (error: unknown) => void }[] = [];
  const onRetry = (rank: Rank, call: PendingCall) =>
    new Promise<void>((resolve, reject) => retries.push({ rank, call, goOn: resolve, giveUp: reject }));
  const ranks = Array.from(
    { length: size },
    (_, index) => new Rank("actor", index, { node: "node:0", devices: [] }, onRetry),
  );
  const processes: FakeProcess[] = [];
  const all: FakeProcess[][] = ranks.map(() => []);
  const up = (index: number) => {
    const process = new FakeProcess();
    processes[index] = process;
    all[index]?.push(process);
    (ranks[index] as Rank).control = process.peer;
    ranks[index]?.up(process.peer, []);
  };
  /** What the cluster does at a death. */
  const die = (index: number) => {
    const again = restart === "group" ? ranks : [ranks[index] as Rank];
    for (const each of again) {
      each.incarnation++;
      each.down();
    }
    calls.startOver(ranks[index] as Rank, restart);
    for (const each of again) processes[each.index]?.die();
    return again.map((each) => each.index);
  };
  const call = (method = "work", chosen: readonly number[] = ranks.map((_, at) => at)): CallHandle<unknown> =>
    calls.call({
      component,
      ranks: chosen.map((index) => ranks[index] as Rank),
      method,
      args: [],
      ends: [],
      step: 3,
    });
  return {
    calls,
    component,
    ranks,
    processes,
    all,
    up,
    die,
    call,
    registered,
    startedOver,
    closed,
    failures,
    saved,
    retries,
  };
}

/** What a handle came to: how often it settled, and how. */
function watch(handle: CallHandle<unknown>) {
  const seen: { values?: unknown[]; error?: unknown }[] = [];
  handle.then(
    (values) => seen.push({ values }),
    (error) => seen.push({ error }),
  );
  return seen;
}

describe("under random calls, replies and deaths", () => {
  type Action = { type: "call" | "reply" | "die" | "up"; a: number; b: number };
  const action: fc.Arbitrary<Action> = fc.record({
    type: fc.constantFrom("call", "call", "reply", "reply", "reply", "die", "up"),
    a: fc.nat(100),
    b: fc.nat(100),
  });
  test.each(["rank", "group"] as const)(
    "R1, R2, G1, G2: calls arrive in order, settle once, and together where ranks hold one state (%s)",
    async (restart) => {
      await fc.assert(
        fc.asyncProperty(fc.integer({ min: 1, max: 3 }), fc.array(action, { maxLength: 40 }), async (size, script) => {
          const w = world(restart, size);
          const down = new Set(w.ranks.map((_, index) => index));
          const handles: { seen: ReturnType<typeof watch>; ranks: number[]; sequence: number }[] = [];
          const upAll = () => {
            for (const index of [...down]) w.up(index);
            down.clear();
          };
          const perform = async ({ type, a, b }: Action) => {
            const index = a % size;
            if (type === "call") {
              const chosen = restart === "group" || b % 2 ? w.ranks.map((_, at) => at) : [index];
              const handle = w.call("work", chosen);
              handles.push({ seen: watch(handle), ranks: chosen, sequence: handles.length + 1 });
            } else if (type === "reply") {
              const process = w.processes[index];
              if (!down.has(index) && process && process.open.length > 0) {
                process.reply();
                await turns();
              }
            } else if (type === "die" && !down.has(index)) {
              for (const each of w.die(index)) down.add(each);
            } else if (type === "up" && down.has(index)) {
              w.up(index);
              down.delete(index);
            }
            for (const { asked } of w.all.flat()) {
              for (const { request } of asked.slice(-1)) {
                const { sequence } = request;
                const isSettled = (handles[sequence - 1]?.seen.length ?? 0) > 0;
                expect(
                  w.registered.has(request.call) || isSettled || w.closed.some((each) => each.call === request.call),
                ).toBe(true); // G1
              }
            }
          };
          for (const each of script) await perform(each);
          for (let round = 0; handles.some(({ seen }) => seen.length === 0); round++) {
            expect(round).toBeLessThan(200);
            upAll();
            for (const process of w.processes) process.reply();
            await turns();
          }
          for (const { asked } of w.all.flat()) {
            const sequences = asked.map(({ request }) => request.sequence);
            expect(sequences).toEqual(sequences.toSorted((a, b) => a - b)); // R1
            expect(new Set(asked.map(({ request }) => request.call)).size).toBe(asked.length);
          }
          for (const { seen, ranks, sequence } of handles) {
            expect(seen).toEqual([{ values: ranks.map((rank) => `${sequence}/${rank}`) }]); // R2
          }
          const ends = w.closed.map(({ call }) => call);
          expect(new Set(ends).size).toBe(ends.length);
          expect(w.closed.every(({ ok }) => ok)).toBe(true);
          expect(w.calls.open).toEqual([]);
          expect([...w.registered]).toEqual([]);
          for (const rank of w.ranks) expect(rank.pending).toEqual([]);
        }),
        { numRuns: 80 },
      );
    },
  );
});

test("G2: a rank that has answered answers again when another dies before the call ended everywhere", async () => {
  const w = world("group", 2);
  w.up(0);
  w.up(1);
  const handle = w.call("train");
  const seen = watch(handle);
  w.processes[0]?.reply(0, { value: "first life", savedPath: "x" });
  await turns();
  expect(w.saved).toEqual([]);
  w.die(1);
  expect(w.startedOver.toSorted()).toEqual(["1/0", "1/1"]);
  w.up(0);
  w.up(1);
  w.processes[0]?.reply(0, { value: "second life", savedPath: "y" });
  w.processes[1]?.reply(0, { value: "b" });
  await turns();
  expect(seen).toEqual([{ values: ["second life", "b"] }]);
  expect(w.saved).toEqual(["actor:y:3"]);
});

test("an answer of a process that was given up changes nothing", async () => {
  const w = world("rank", 1);
  w.up(0);
  const seen = watch(w.call());
  const old = w.processes[0] as FakeProcess;
  const [late] = old.open;
  w.ranks[0]!.incarnation++;
  w.ranks[0]!.down();
  w.calls.startOver(w.ranks[0] as Rank, "rank");
  late?.resolve({ value: "late", durationMs: 1, timers: {} });
  await turns();
  expect(seen).toEqual([]);
  w.up(0);
  w.processes[0]?.reply(0, { value: "again" });
  await turns();
  expect(seen).toEqual([{ values: ["again"] }]);
});

test("C1: the link to a process that is not to be used any more is cut, so that nothing late comes in its name", () => {
  const w = world("rank", 1);
  w.up(0);
  const old = w.processes[0] as FakeProcess;
  w.ranks[0]!.incarnation++;
  w.ranks[0]!.down();
  expect(old.closedWith).toHaveLength(1);
  expect(old.closedWith[0]).toBeInstanceOf(Error);
});

describe("a call that failed because of a peer", () => {
  const peerDied = new TreadleError("worker.died", "the peer is gone", { origin: { worker: "other/0" } });

  test("is made again when everybody is back, and at most so often", async () => {
    const w = world("rank", 1);
    w.up(0);
    const seen = watch(w.call());
    for (let attempt = 1; attempt < 5; attempt++) {
      w.processes[0]?.fail(peerDied);
      await turns();
      expect(seen).toEqual([]);
      w.retries.at(-1)?.goOn();
      await turns();
    }
    expect(w.processes[0]?.asked).toHaveLength(5);
    w.processes[0]?.fail(peerDied);
    await turns();
    expect(seen).toEqual([{ error: peerDied }]);
    expect(w.failures).toEqual([peerDied]);
    expect(w.calls.open).toEqual([]);
  });

  test("R2: is still pending, and made once, when its own process dies while it waits for the peer", async () => {
    const w = world("rank", 1);
    w.up(0);
    const seen = watch(w.call());
    w.processes[0]?.fail(peerDied);
    await turns();
    w.die(0);
    w.up(0);
    w.retries[0]?.goOn();
    await turns();
    expect(w.processes[0]?.asked).toHaveLength(1);
    w.processes[0]?.reply();
    await turns();
    expect(seen).toEqual([{ values: ["1/0"] }]);
  });
});

describe("failures and cancellation", () => {
  test("S1: a method that throws fails its call on that rank, and the others' answers stay readable", async () => {
    const w = world("rank", 2);
    w.up(0);
    w.up(1);
    const handle = w.call();
    const boom = new TreadleError("call.failed", "boom");
    w.processes[0]?.fail(boom);
    w.processes[1]?.reply();
    await turns();
    await expect(Promise.resolve(handle)).rejects.toBe(boom);
    expect(await handle.onRanks(1)).toEqual(["1/1"]);
    expect(w.failures[0]).toBe(boom);
    expect(w.closed.toSorted((a, b) => a.call.localeCompare(b.call))).toEqual([
      { call: "1/0", ok: false },
      { call: "1/1", ok: true },
    ]);
    expect(w.calls.open).toEqual([]);
  });

  test.each(["rank", "group"] as const)(
    "a cancelled call is over on every rank, and is not made again (%s)",
    async (restart) => {
      const w = world(restart, 2);
      w.up(0);
      w.up(1);
      const handle = w.call();
      w.processes[0]?.reply();
      await turns();
      handle.cancel("because");
      await expect(Promise.resolve(handle)).rejects.toMatchObject({ code: "call.cancelled" });
      await turns();
      expect(w.calls.open).toEqual([]);
      expect([...w.registered]).toEqual([]);
      w.die(0);
      w.up(0);
      if (restart === "group") w.up(1);
      expect(w.processes[0]?.asked).toEqual([]);
    },
  );

  test("a call cancelled on all ranks at once is over", async () => {
    const w = world("rank", 3);
    for (const index of [0, 1, 2]) w.up(index);
    w.call().cancel();
    await turns();
    expect(w.calls.open).toEqual([]);
    for (const rank of w.ranks) expect(rank.pending).toEqual([]);
  });

  test("when the run fails, everything that is open is told, and whoever waits for the rank", async () => {
    const w = world("rank", 2);
    w.up(0);
    const seen = watch(w.call());
    const ready = w.ranks[1]!.ready();
    ready.catch(() => {});
    const over = new TreadleError("run.stopped", "over");
    for (const rank of w.ranks) rank.fail(over);
    w.calls.fail(over);
    await turns();
    expect(seen).toEqual([{ error: over }]);
    await expect(ready).rejects.toBe(over);
    await expect(w.ranks[1]!.ready()).rejects.toBe(over);
    const late = watch(w.call());
    await turns();
    expect(late).toEqual([{ error: over }]);
  });
});

test("the last successful call of a replayed method is made again on a restarted rank, alone", async () => {
  const w = world("rank", 1, ["pull"]);
  w.up(0);
  for (let i = 0; i < 2; i++) {
    const handle = w.call("pull");
    w.processes[0]?.reply();
    await handle;
  }
  const sent: CallRequest[] = [];
  await w.calls.replay(w.ranks[0] as Rank, w.component, async (request) => void sent.push(request));
  expect(sent).toMatchObject([{ method: "pull", sequence: 3, call: "3/0" }]);
  expect([...w.registered]).toEqual([]);
});

test("a rank that has made a replayed call makes it again after a restart, also while its mates still make theirs", async () => {
  const w = world("rank", 2, ["pull"]);
  w.up(0);
  w.up(1);
  const handle = w.call("pull");
  w.processes[0]?.reply();
  await turns();
  w.die(0);
  const sent: CallRequest[] = [];
  await w.calls.replay(w.ranks[0] as Rank, w.component, async (request) => void sent.push(request));
  expect(sent).toMatchObject([{ method: "pull", call: "2/0" }]);
  w.processes[1]?.reply();
  await handle;
});
