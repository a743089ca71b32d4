/** The entries of a history, read from any point at which it was begun again, say what the pool's state says. */
import type { PoolEntry } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { DevicePoolState, PoolHistory, type PoolInput, type SharingPolicy } from "../../src/index.ts";

const ids = ["d0", "d1"];
const runs = ["r0", "r1", "r2"];
const limits = { residents: 2, turnMs: 20, patienceMs: 40, yieldMs: 60, beatLimitMs: 300 };
const run = fc.constantFrom(...runs);
const devices = fc.subarray(ids, { minLength: 1 });
const step = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.nat(30)),
  begins: fc.oneof({ weight: 9, arbitrary: fc.constant(false) }, { weight: 1, arbitrary: fc.constant(true) }),
  act: fc.oneof(
    fc.record({ do: fc.constantFrom("join" as const, "release" as const, "agree" as const), run }),
    fc.record({ do: fc.constant("request" as const), run, devices }),
    fc.record({ do: fc.constantFrom("gone" as const, ...Array(3).fill("join" as const)), run }),
    fc.record({ do: fc.constantFrom("tick" as const, "beat" as const, "uses" as const), run }),
  ),
});

/** What a reader knows, by entries alone. */
class Reader {
  readonly stages = new Map<string, string>();
  readonly holdings = new Map<
    number,
    { readonly run: string; readonly devices: readonly string[]; readonly work?: string | undefined }
  >();
  readonly waits = new Map<string, string>();
  read(entry: PoolEntry): void {
    if (entry.type === "stage" && entry.stage === "gone") this.stages.delete(entry.run);
    else if (entry.type === "stage") this.stages.set(entry.run, entry.stage);
    else if (entry.type === "holds")
      this.holdings.set(entry.token, { run: entry.run, devices: entry.devices, work: entry.work });
    else if (entry.type === "released") this.holdings.delete(entry.token);
    else if (entry.type === "waits" && entry.on === null) this.waits.delete(entry.run);
    else if (entry.type === "waits" && entry.on) this.waits.set(entry.run, `${entry.on.type} ${entry.on.runs}`);
  }
}

test("whatever happens in a pool, a history that was begun at any time says who has, and who waits for, what (PH2)", () => {
  const decided = new Set<string>();
  fc.assert(
    fc.property(fc.array(step, { minLength: 30, maxLength: 80 }), (steps) => {
      const policy: SharingPolicy = {
        ...{ version: 0, worked: () => {}, gone: () => {}, slowdown: () => 1 },
        sharesNow: ({ waiter: { work } }) => ({ shares: work === "r0/w", why: `since it is ${work}` }),
      };
      const state = new DevicePoolState(limits, 0, policy);
      const history = new PoolHistory();
      let reader = new Reader();
      let nowMs = 0;
      for (const { afterMs, begins, act } of steps) {
        nowMs += afterMs;
        const input = inputOf(act, state);
        if (input === undefined) continue;
        const effects = state.handle(input, nowMs);
        if (begins) {
          reader = new Reader();
          history.forget();
        }
        const entries = history.changes(state, nowMs, 1e12 + nowMs);
        for (const entry of entries) {
          expect(entry.atMs).toBe(1e12 + nowMs);
          if (entry.type === "decided") decided.add(entry.decision.type);
          reader.read(entry);
        }
        const view = state.view(nowMs);
        expect(Object.fromEntries(reader.stages)).toEqual(
          Object.fromEntries(view.map((each) => [each.run, each.stage])),
        );
        const holdings = state.holdings.map(({ token, run: by, devices: on, work }) => [
          token,
          { run: by, devices: on, work },
        ]);
        expect([...reader.holdings].sort(([a], [b]) => a - b)).toEqual(
          holdings.sort(([a], [b]) => Number(a) - Number(b)),
        );
        const waits = view.flatMap(({ run: by, waits: on }) => (on ? [[by, `${on.on.type} ${on.on.runs}`]] : []));
        expect(Object.fromEntries(reader.waits)).toEqual(Object.fromEntries(waits));
        // Who is told to drain, or is ended, is in the history with the reason.
        const told = effects.filter((each) => each.type === "end" || (each.type === "wanted" && each.drains)).length;
        const said = entries.filter((each) => each.type === "decided" && /yields|ended/.test(each.decision.type));
        expect(said.length).toBe(told);
        expect(history.changes(state, nowMs, 0).filter(({ type }) => type !== "decided")).toEqual([]);
      }
    }),
  );
  expect([...decided].sort()).toEqual(["after", "beside", "ended", "yields"]);
});

function inputOf(
  act: { readonly do: string; readonly run: string; readonly devices?: string[] },
  state: DevicePoolState,
): PoolInput | undefined {
  const { run: by } = act;
  const lease = state.leases.get(by)?.[0];
  switch (act.do) {
    case "join":
      return {
        ...{ type: "join", run: by },
        member: {
          ...{ priority: by === "r2" ? 1 : 0, weight: 1, share: "always" },
          devices: ids.map((id) => ({ id, memoryMiB: 100 })),
        },
      };
    case "request":
      return { type: "request", run: by, devices: act.devices as string[], work: `${by}/w` };
    case "release":
      return lease && { type: "release", run: by, token: lease.token };
    case "agree":
      return lease && { type: "shares", run: by, token: lease.token, work: `${by}/w` };
    case "uses":
      return lease && { type: "uses", run: by, token: lease.token, work: `${by}/v` };
    case "tick":
      return { type: "tick" };
    default:
      return { type: act.do as "beat" | "gone", run: by };
  }
}
