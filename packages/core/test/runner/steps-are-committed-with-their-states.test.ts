import fc from "fast-check";
import { expect, test } from "vitest";
import { RunnerWorld } from "./runner-world.ts";

/** A trainer whose states come on the disk when a test says so. */
class AheadWorld extends RunnerWorld {
  #call = 0;
  constructor(size: number) {
    super({ runsAhead: true });
    this.component(size, { restart: "group" });
    for (const { worker } of this.state.ranks) this.up(worker);
  }
  /** A step that trains once. */
  step(step: number): number {
    const sequence = ++this.#call;
    this.feed({ type: "begin-step", step });
    this.feed({ type: "begin-work", step });
    const ranks = this.state.ranks.map(({ index }) => index);
    this.feed({ type: "call", sequence, component: "actor", method: "train", ranks, ends: [], step, changes: true });
    return sequence;
  }
  end(step: number, sequence: number): void {
    for (const { index } of this.state.ranks) this.returned(`${sequence}/${index}`);
    this.feed({ type: "end-work", step });
    this.feed({ type: "end-body", step });
  }
  durable(step: number, sequence: number): void {
    const state = { component: "actor", sequence, step, path: `state ${step}` };
    this.feed({ type: "durable", ...this.id("actor/0"), ...state });
  }
  get commits(): { steps: number[]; state: string | undefined }[] {
    return this.all("commit").map(({ step, earlier = [], states }) => ({
      steps: [...earlier.map((each) => each.step), step],
      state: states["actor"],
    }));
  }
}

test("RS8: steps are committed once each, in order, with the state after the last of them, whenever states are on the disk", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 4 }), fc.array(fc.nat(4), { maxLength: 12 }), (everySteps, delays) => {
      const world = new AheadWorld(2);
      const writing: { step: number; sequence: number; untilStep: number }[] = [];
      let newest = 0;
      const write = (upTo: number) => {
        // In the order in which they were begun, as a worker writes them.
        while (writing[0] && writing[0].untilStep <= upTo) {
          const { step, sequence } = writing.shift() as (typeof writing)[number];
          world.durable(step, sequence);
          newest = step;
        }
      };
      for (const [at, delay] of delays.entries()) {
        const step = at + 1;
        const sequence = world.step(step);
        world.end(step, sequence);
        const isSaved = step % everySteps === 0 || step === delays.length;
        if (isSaved) writing.push({ step, sequence, untilStep: step + delay });
        write(step);
        expect(world.commits.at(-1)?.steps.at(-1) ?? 0).toBe(newest);
      }
      write(Number.POSITIVE_INFINITY);
      expect(world.commits.flatMap(({ steps }) => steps)).toEqual(delays.map((_, at) => at + 1));
      for (const { steps, state } of world.commits) expect(state).toBe(`state ${steps.at(-1)}`);
    }),
  );
});

test("RS8: a death with what no saved state has ends the run for one that goes on after the last commit", () => {
  const world = new AheadWorld(2);
  const first = world.step(1);
  world.end(1, first);
  world.durable(1, first);
  expect(world.commits).toEqual([{ steps: [1], state: "state 1" }]);
  world.end(2, world.step(2));
  world.die("actor/1");
  expect(world.state.failure).toMatchObject({
    code: "run.rolled-back",
    message: expect.stringContaining("'2'"),
    details: { nodeLost: false },
  });
});

test("RS8, RB1: whether it was a node that was lost is said with it, as that uses up nothing", () => {
  const world = new AheadWorld(2);
  world.end(1, world.step(1));
  const failure = { code: "node.lost", message: "its power failed" };
  world.feed({ type: "exited", ...world.id("actor/1"), code: null, signal: null, failure, logTail: [] });
  expect(world.state.failure).toMatchObject({ code: "run.rolled-back", details: { nodeLost: true } });
});

test("RS8: a death in the midst of a call, with all before it saved, costs a restart of the group alone", () => {
  const world = new AheadWorld(2);
  const first = world.step(1);
  world.end(1, first);
  world.durable(1, first);
  world.step(2);
  world.die("actor/1");
  expect(world.state.failure).toBeUndefined();
  expect(world.all("died")).toHaveLength(1);
});

test("RS8: a state that is on the disk before all ranks have replied counts with the last reply, and not if one dies first", () => {
  const world = new AheadWorld(2);
  const sequence = world.step(1);
  world.returned(`${sequence}/0`);
  world.durable(1, sequence);
  expect(world.state.newestState("actor")).toBeUndefined();
  world.returned(`${sequence}/1`);
  expect(world.state.newestState("actor")).toBe("state 1");

  const other = new AheadWorld(2);
  const again = other.step(1);
  other.returned(`${again}/0`);
  other.durable(1, again);
  other.die("actor/1");
  expect(other.state.failure).toBeUndefined();
  expect(other.state.newestState("actor")).toBeUndefined();
});
