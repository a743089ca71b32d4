import { expect, test } from "vitest";
import { bounded, userPolicy } from "../../../src/runner/cluster/user-policy.ts";

const take = { worker: "actor/0", min: 1, maxItems: 2, maxWeight: 9, loadWeight: 0 };
const items = [1, 2, 3].map((weight) => ({ key: undefined, weight, priority: 0, sizeBytes: 1 }));

test("a policy without an end is ended, and the next call of another is sound", () => {
  const endless = bounded(() => {
    for (;;);
  });
  expect(() => endless(items, take)).toThrow("it did not answer within 1000 ms");
  expect(bounded((given) => [given.length - 1])(items, take)).toEqual([2]);
});

test("what it throws is what comes out", () => {
  const failing = bounded(() => {
    throw new RangeError("of its own");
  });
  expect(() => failing(items, take)).toThrow(RangeError);
});

test("one that no module exports is refused, since a replay could not find it", () => {
  const mine = () => [0];
  const module = { url: "file:///project/run.ts", exports: { mine } };
  expect(userPolicy("in", mine, module)).toMatchObject({ module: module.url, exportName: "mine" });
  expect(() => userPolicy("in", () => [0], module)).toThrow(
    "is not exported by the workflow's module; export it there",
  );
  expect(() => userPolicy("in", mine, undefined)).toThrow("channel 'in'");
});
