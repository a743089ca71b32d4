import type { MembershipChange } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { MembershipState } from "../../src/control-plane/membership-state.ts";

const leaseMs = 100;
const entry = (incarnation: number, body: unknown = {}) => ({ kind: "node", name: "one", incarnation, body }) as const;
const types = (changes: readonly MembershipChange[]) => changes.map(({ type }) => type);

test("M1: a member joins with the first beat of its entry's incarnation, and leaves when it is silent for its lease", () => {
  const state = new MembershipState(leaseMs, 0);
  expect(state.entry(entry(2), 0, 0)).toEqual([]);
  expect(state.beat("node", "one", 1, 10)).toEqual([]); // M4
  expect(types(state.beat("node", "one", 2, 10))).toEqual(["joined"]);
  expect(state.members("run")).toEqual([]);
  for (const nowMs of [40, 80, 110]) expect(state.tick(nowMs)).toEqual([]);
  expect(state.tick(111)).toMatchObject([{ type: "left", reason: expect.stringContaining("101 ms") }]);
  expect(types(state.beat("node", "one", 2, 120))).toEqual(["joined"]);
  expect(state.goodbye("node", "one", 1, "an old one's")).toEqual([]);
  expect(state.goodbye("node", "one", 2, "it drains")).toMatchObject([{ type: "left", reason: "it drains" }]);
});

test("M1: a new incarnation takes the place of the old one, also when its beat comes before its entry", () => {
  const state = new MembershipState(leaseMs, 0);
  state.entry(entry(1), 0, 0);
  state.beat("node", "one", 1, 0);
  expect(state.beat("node", "one", 2, 10)).toEqual([]);
  expect(state.entry(entry(2), 0, 20).map(({ type, member }) => [type, member.incarnation])).toEqual([
    ["left", 1],
    ["joined", 2],
  ]);
  expect(types(state.entry(entry(2, { cpus: 3 }), 0, 30))).toEqual(["changed"]);
  expect(state.beat("node", "one", 1, 40)).toEqual([]); // M4
  expect(state.entry(entry(1), 0, 50)).toEqual([]);
  expect(state.members("node")).toMatchObject([{ incarnation: 2, body: { cpus: 3 } }]);
});

test("M4: once the newer one has left, an older one that is heard is there", () => {
  const state = new MembershipState(leaseMs, 0);
  state.entry(entry(2), 0, 0);
  state.beat("node", "one", 2, 0);
  state.goodbye("node", "one", 2, "it drains");
  expect(state.lacks("node", "one", 1, 0)).toBe(true);
  state.entry(entry(1), 0, 10);
  expect(types(state.beat("node", "one", 1, 10))).toEqual(["joined"]);
});

test("an entry is lacking when a beat names another incarnation, or a later version", () => {
  const state = new MembershipState(leaseMs, 0);
  expect(state.lacks("node", "one", 1, 0)).toBe(true);
  state.entry(entry(1), 3, 0);
  state.beat("node", "one", 1, 0);
  expect([2, 3, 4].map((version) => state.lacks("node", "one", 1, version))).toEqual([false, false, true]);
  expect(state.lacks("node", "one", 2, 0)).toBe(true);
  expect(state.lacks("node", "one", 0, 9)).toBe(false); // of one that is older than who is there
});

test("M3: nobody's silence counts while this process was cut off, or did not run", () => {
  const state = new MembershipState(leaseMs, 0);
  state.entry(entry(1), 0, 0);
  state.beat("node", "one", 1, 0);
  state.connection(false, 10);
  for (let nowMs = 20; nowMs < 1000; nowMs += 40) expect(state.tick(nowMs)).toEqual([]);
  state.connection(true, 1000);
  expect(state.tick(1010)).toEqual([]);
  expect(state.tick(5000)).toEqual([]); // it slept through three seconds
  for (const nowMs of [5040, 5080]) expect(state.tick(nowMs)).toEqual([]);
  expect(types(state.tick(5120))).toEqual(["left"]);
});

const event = fc.oneof(
  fc.record({ do: fc.constant("entry"), incarnation: fc.integer({ min: 1, max: 4 }) }),
  fc.record({ do: fc.constant("beat"), incarnation: fc.integer({ min: 1, max: 4 }) }),
  fc.record({ do: fc.constant("goodbye"), incarnation: fc.integer({ min: 1, max: 4 }) }),
  fc.record({ do: fc.constantFrom("cut", "joined"), incarnation: fc.constant(0) }),
  fc.record({ do: fc.constant("wait"), incarnation: fc.integer({ min: 1, max: 60 }) }),
);

test("M2: whatever arrives in whatever order, joining and leaving alternate, and the list agrees with them", () => {
  fc.assert(
    fc.property(fc.array(event, { maxLength: 60 }), (events) => {
      const state = new MembershipState(leaseMs, 0);
      let nowMs = 0;
      let present: number | undefined;
      for (const { do: what, incarnation } of events) {
        const changes: MembershipChange[] = [];
        if (what === "entry") changes.push(...state.entry(entry(incarnation), 0, nowMs));
        else if (what === "beat") changes.push(...state.beat("node", "one", incarnation, nowMs));
        else if (what === "goodbye") changes.push(...state.goodbye("node", "one", incarnation, "bye"));
        else if (what === "wait") {
          nowMs += incarnation;
          changes.push(...state.tick(nowMs));
        } else state.connection(what === "joined", nowMs);
        for (const { type, member } of changes) {
          expect(type === "joined" ? undefined : member.incarnation).toBe(present);
          if (type === "joined") present = member.incarnation;
          if (type === "left") present = undefined;
        }
        expect(state.members("node").map((member) => member.incarnation)).toEqual(
          present === undefined ? [] : [present],
        );
      }
    }),
    { numRuns: 2000 },
  );
});

test("M5: names under which nobody is there fill no memory, and keep nobody out", () => {
  const state = new MembershipState(leaseMs, 0);
  for (let i = 0; i < 25_000; i++) state.beat("node", `stranger-${i}`, 1, 0);
  expect(state.names).toBeLessThanOrEqual(10_000);
  expect(state.entry(entry(1), 0, 0)).toEqual([]);
  expect(types(state.beat("node", "one", 1, 10))).toEqual(["joined"]);
  for (let i = 0; i < 25_000; i++) state.entry({ ...entry(1), name: `another-${i}` }, 0, 10);
  expect(state.names).toBeLessThanOrEqual(10_000);
  expect(state.members("node")).toHaveLength(1);
  for (let i = 0; i < 25_000; i++) state.beat("node", `one-more-${i}`, 1, 10);
  for (let nowMs = 40; nowMs <= 240; nowMs += 40) {
    state.beat("node", "one", 1, nowMs);
    state.tick(nowMs);
  }
  expect(state.names).toBe(1);
  expect(state.members("node")).toHaveLength(1);
});

test("M2: who is disowned has left, and whoever comes under that name is there whatever its incarnation", () => {
  const state = new MembershipState(leaseMs, 0);
  expect(state.disown("node", "one", "forged")).toEqual([]);
  state.entry(entry(9), 0, 0);
  state.beat("node", "one", 9, 0);
  expect(state.disown("node", "one", "forged")).toMatchObject([{ type: "left", reason: "forged" }]);
  expect(state.entry(entry(1), 0, 10)).toEqual([]);
  expect(types(state.beat("node", "one", 1, 10))).toEqual(["joined"]);
});
