import fc from "fast-check";
import { expect, test } from "vitest";
import { itemsGraceMs, LendState } from "../../src/device-lock/lend-state.ts";

const idle = { keeps: false, computes: false };

test("LW2: it is said once, and again after each answer while anything still waits", () => {
  const lending = new LendState();
  for (let i = 0; i < 3; i++) lending.asked();
  expect(lending.next(idle)).toEqual({ type: "let-go-on" });
  expect(lending.next(idle)).toEqual({ type: "say", numAnswered: 0 });
  expect(lending.next(idle)).toEqual({ type: "await-change" });
  lending.answered("room", true);
  expect(lending.next(idle)).toEqual({ type: "let-go-on" });
  expect(lending.next(idle)).toEqual({ type: "say", numAnswered: 1 });
  lending.answered("room", false); // of a wait that began before the call held devices
  expect(lending.next(idle)).toEqual({ type: "let-go-on" });
  expect(lending.next(idle)).toEqual({ type: "say", numAnswered: 2 });
});

test("LW3: items have time to be fetched, and to set something to work", () => {
  const lending = new LendState();
  lending.asked();
  lending.asked();
  lending.answered("items", true);
  expect(lending.next(idle)).toEqual({ type: "let-go-on", forMs: itemsGraceMs });
  expect(lending.next({ ...idle, computes: true })).toEqual({ type: "await-idle" });
  expect(lending.next(idle)).toEqual({ type: "say", numAnswered: 1 });
});

test("LW3: what is asked for before the call has gone on, it waits for with its devices", () => {
  const lending = new LendState();
  expect(lending.terms(idle)).toEqual({ keeps: "for-now" }); // since its grant
  lending.asked();
  expect(lending.next(idle)).toEqual({ type: "let-go-on" });
  expect(lending.terms(idle)).toEqual({ keeps: "for-now" });
  expect(lending.next(idle)).toEqual({ type: "say", numAnswered: 0 });
  expect(lending.terms(idle)).toEqual({ numAnswered: 0 });
  lending.answered("items", true);
  expect(lending.terms(idle)).toEqual({ keeps: "for-now" });
  lending.asked();
  // One after the other: it has done with what it took before.
  expect(lending.next(idle)).toEqual({ type: "let-go-on" });
  expect(lending.next(idle)).toEqual({ type: "say", numAnswered: 1 });
  lending.granted();
  expect(lending.terms(idle)).toEqual({ keeps: "for-now" });
});

test("LW3: items of a stream have their time, whatever is answered and computes, until all are committed", () => {
  const lending = new LendState();
  const given = () => {
    lending.asked();
    lending.answered("items", true, 2);
    lending.asked();
    expect(lending.next(idle)).toEqual({ type: "let-go-on", forMs: itemsGraceMs });
    expect(lending.terms(idle)).toEqual({ keeps: "for-now" });
  };
  given();
  lending.asked();
  lending.answered("room", true);
  expect(lending.next(idle)).toEqual({ type: "let-go-on", forMs: itemsGraceMs });
  expect(lending.next(idle)).toMatchObject({ type: "say" }); // its time is over
  lending.answered("room", true);
  given();
  expect(lending.next({ ...idle, computes: true })).toEqual({ type: "await-idle" });
  expect(lending.terms(idle)).toEqual({ keeps: "for-now" });
  expect(lending.next(idle)).toEqual({ type: "let-go-on", forMs: itemsGraceMs }); // others of them may begin
  expect(lending.committed(3)).toBe(false);
  expect(lending.terms(idle)).toEqual({ keeps: "for-now" });
  expect(lending.committed(1)).toBe(true);
  expect(lending.next(idle)).toEqual({ type: "let-go-on" });
  expect(lending.next(idle)).toMatchObject({ type: "say" });
});

test("LW1: whatever is asked and answered, it is said only of a call that waits, computes nothing and keeps nothing", () => {
  const event = fc.oneof(
    fc.constant({ type: "asked" } as const),
    fc.record({
      type: fc.constant("answered" as const),
      brought: fc.constantFrom("room" as const, "items" as const),
      numGiven: fc.nat(2),
    }),
    fc.record({ type: fc.constant("committed" as const), numItems: fc.nat(2) }),
    fc.record({ type: fc.constant("looked" as const), keeps: fc.boolean(), computes: fc.boolean() }),
  );
  fc.assert(
    fc.property(fc.array(event, { maxLength: 60 }), (events) => {
      const lending = new LendState();
      let [numOpen, numAnswered] = [0, 0];
      for (const each of events) {
        if (each.type === "asked") {
          const terms = lending.terms(idle);
          if (!terms.keeps) expect(terms.numAnswered).toBe(numAnswered);
          lending.asked();
          numOpen++;
        } else if (each.type === "committed") {
          lending.committed(each.numItems);
        } else if (each.type === "answered") {
          if (numOpen === 0) continue;
          lending.answered(each.brought, true, each.numGiven);
          numOpen--;
          numAnswered++;
        } else {
          const step = lending.next(each);
          expect(step.type === "over").toBe(numOpen === 0);
          if (step.type !== "say") continue;
          expect(each).toMatchObject(idle);
          expect(step.numAnswered).toBe(numAnswered);
        }
      }
      // LW2: whatever happened, it is said in the end.
      const steps = Array.from({ length: 3 }, () => lending.next(idle).type);
      if (numOpen > 0) expect(steps).toContain("await-change");
    }),
  );
});
