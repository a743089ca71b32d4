import fc from "fast-check";
import { expect, test } from "vitest";
import { SavePace } from "../../src/steps/save-pace.ts";
import { SavedStates } from "../../src/steps/saved-states.ts";

test("a state is due after the calls of every K-th step, of the last one, and outside of steps", () => {
  const due = (everySteps: number, committed: number, lastStep: number, steps: readonly (number | undefined)[]) => {
    const pace = new SavePace({ everySteps, committed, lastStep });
    return steps.filter((step) => pace.isDue("actor", step));
  };
  expect(due(3, 0, 8, [undefined, 1, 2, 3, 3, 4, 5, 6, 7, 8])).toEqual([undefined, 3, 3, 6, 8]);
  expect(due(3, 4, 20, [5, 6, 7])).toEqual([6]);
  expect(due(3, 0, 20, [2, 5, 8, 11])).toEqual([5, 8, 11]); // not called in the steps that are due
});

test("SS1: a step is whole when, and only when, every change up to it is in a state that no later step has changed", () => {
  const acts = fc.array(
    fc.record({ component: fc.constantFrom("actor", "critic"), step: fc.nat(1), saves: fc.boolean() }),
  );
  fc.assert(
    fc.property(acts, (drawn) => {
      const states = new SavedStates();
      const last = new Map<string, { step: number; isSaved: boolean }[]>();
      let step = 1;
      for (const [at, { component, step: more, saves }] of drawn.entries()) {
        step += more;
        states.changed(component, step, at + 1);
        if (saves) states.save(component, `${component} ${at + 1}`, step, at + 1);
        last.set(component, [...(last.get(component) ?? []), { step, isSaved: saves }]);
      }
      for (let asked = 1; asked <= step; asked++) {
        const expected = [...last.values()].every(
          (calls) => calls.findLast((call) => call.step <= asked)?.isSaved ?? true,
        );
        expect(states.isWhole(asked)).toBe(expected);
      }
      const unsaved = [...last].filter(([, calls]) => !calls.at(-1)?.isSaved).map(([component]) => component);
      expect(states.unsaved.toSorted()).toEqual(unsaved.sort());
    }),
  );
});

test("a component that had nothing to save keeps no step from being whole", () => {
  const states = new SavedStates();
  states.changed("inference", 1, 1);
  expect(states.isWhole(1)).toBe(false);
  states.save("inference", undefined, 1, 1);
  expect(states.isWhole(1)).toBe(true);
  expect(states.asOf(1)).toEqual(new Map());
});
