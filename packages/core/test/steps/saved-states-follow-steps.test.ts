import { expect, test } from "vitest";
import { SavedStates } from "../../src/steps/saved-states.ts";

test("J1: a step gets the state that it left, not that of a later step which has saved already", () => {
  const states = new SavedStates();
  states.save("actor", "restored", undefined);
  states.save("actor", "after 1", 1);
  states.save("actor", "after 2", 2);
  states.save("critic", "of 2", 2);
  expect(states.newest("actor")).toBe("after 2");
  expect(states.asOf()).toEqual(
    new Map([
      ["actor", "after 2"],
      ["critic", "of 2"],
    ]),
  );
  expect(states.asOf(1)).toEqual(new Map([["actor", "after 1"]]));
  expect(states.asOf(3)).toEqual(
    new Map([
      ["actor", "after 2"],
      ["critic", "of 2"],
    ]),
  );
});

test("what is saved outside of steps holds from then on", () => {
  const states = new SavedStates();
  states.save("actor", "of 1", 1);
  states.save("actor", "after the loop", undefined);
  expect(states.asOf(1)).toEqual(new Map([["actor", "after the loop"]]));
  expect(states.newest("unknown")).toBeUndefined();
});
