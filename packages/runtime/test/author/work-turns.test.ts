import type { WorkDone } from "@treadle/contracts";
import { expect, test } from "vitest";
import { WorkTurns } from "../../src/author/work-turns.ts";

/** Turns of a worker whose engine counts, unless it is given none, on a clock that is set by hand. */
function turnsOf(engine?: { passes: number; tokens: number; ms: number; isEmulated?: true }) {
  const said: WorkDone[] = [];
  const clock = { ms: 0, cpuMs: 0, queuedMs: 0 };
  const turns = new WorkTurns({
    takeWork: () => {
      if (engine === undefined) return undefined;
      const counted = { ...engine };
      Object.assign(engine, { passes: 0, tokens: 0, ms: 0 });
      return counted;
    },
    tell: (done) => said.push(done),
    now: () => clock.ms,
    cpuMs: () => clock.cpuMs,
    queuedMs: () => clock.queuedMs,
  });
  return { turns, said, clock, engine };
}

test("what an engine has computed is told at the end of a turn, and cut where others begin or end", () => {
  const { turns, said, clock, engine } = turnsOf({ passes: 0, tokens: 0, ms: 0 });
  turns.granted();
  turns.released();
  expect(said, "nobody has asked yet").toEqual([]);
  turns.beside([]);
  Object.assign(engine!, { passes: 9, tokens: 9, ms: 9 }); // outside of a turn
  turns.granted();
  Object.assign(engine!, { passes: 3, tokens: 30, ms: 40 });
  Object.assign(clock, { ms: 50, cpuMs: 30, queuedMs: 5 });
  turns.beside(["train@1"]);
  Object.assign(engine!, { passes: 2, tokens: 20, ms: 60 });
  clock.ms = 120;
  turns.released();
  expect(said).toEqual([
    { beside: [], passes: 3, tokens: 30, ms: 40, cpuMs: 30, queuedMs: 5, forMs: 50, ends: false },
    { beside: ["train@1"], passes: 2, tokens: 20, ms: 60, cpuMs: 0, queuedMs: 0, forMs: 70, ends: true },
  ]);
});

test("SM2: whoever has the processors does not contend with an engine whose time is emulated, and does with others", () => {
  const queuedOf = (emulated: { isEmulated?: true }) => {
    const { turns, said, clock, engine } = turnsOf({ passes: 0, tokens: 0, ms: 0, ...emulated });
    turns.beside([]);
    turns.granted();
    Object.assign(engine!, { passes: 40, ms: 40 });
    Object.assign(clock, { ms: 70, cpuMs: 3, queuedMs: 30 });
    turns.released();
    expect(said).toMatchObject([{ passes: 40, ms: 40, cpuMs: 3, forMs: 70 }]);
    expect(said[0], "nobody else is told").not.toHaveProperty("isEmulated");
    return said[0]?.queuedMs;
  };
  expect(queuedOf({})).toBe(30);
  expect(queuedOf({ isEmulated: true })).toBe(0);
});

test("without a count a turn is one pass, if nobody began beside it meanwhile, and it kept its devices", () => {
  const { turns, said, clock } = turnsOf();
  const turn = (during: () => void) => {
    turns.granted();
    clock.ms += 10;
    during();
    clock.ms += 10;
    turns.released();
    return said.splice(0).map(({ passes, ms, beside }) => ({ passes, ms, beside }));
  };
  turns.beside([]);
  expect(turn(() => {})).toEqual([{ passes: 1, ms: 20, beside: [] }]);
  expect(turn(() => turns.lent())).toEqual([{ passes: 0, ms: 0, beside: [] }]);
  expect(turn(() => turns.beside(["a@1"]))).toEqual([{ passes: 0, ms: 0, beside: ["a@1"] }]);
  expect(turn(() => {})).toEqual([{ passes: 1, ms: 20, beside: ["a@1"] }]);
});

test("calls that hold the devices together have one turn; whoever slows down is told at once, and after what was done is told", () => {
  const { turns, said, clock, engine } = turnsOf({ passes: 0, tokens: 0, ms: 0 });
  const heard: string[] = [];
  turns.beside(["a@1"]);
  turns.onBeside((works) => heard.push(`${works} after ${said.length}`));
  for (let i = 0; i < 2; i++) turns.granted();
  turns.released();
  expect(said).toEqual([]);
  Object.assign(engine!, { passes: 1, ms: 1 });
  clock.ms = 5;
  turns.beside(["b@1"]);
  turns.released();
  expect(heard).toEqual(["a@1 after 0", "b@1 after 1"]);
  expect(said.map(({ ends, beside }) => [ends, beside])).toEqual([
    [false, ["a@1"]],
    [true, ["b@1"]],
  ]);
});
