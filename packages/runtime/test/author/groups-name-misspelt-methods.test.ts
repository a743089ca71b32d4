import { expect, test } from "vitest";
import { createGroup } from "../../src/author/group/group.ts";
import { CallHandle } from "../../src/author/group/handle.ts";

type Calls = { mul(): unknown; mull(): unknown; nothing(): unknown };
const group = createGroup({ name: "calculator", size: 1, methods: ["add", "mul"] }, (_, method) => {
  return new CallHandle(method, [0], [Promise.resolve({ value: method, durationMs: 0, timers: {} })], () => {});
}) as unknown as Calls & PromiseLike<unknown>;

test("a method that a group does not have is named with the nearest one, and with all where none is near", () => {
  expect(() => group.mull()).toThrow(
    expect.objectContaining({
      code: "call.unknown-method",
      message: "group 'calculator' has no method 'mull'; did you mean 'mul'?",
    }),
  );
  expect(() => group.nothing()).toThrow("group 'calculator' has no method 'nothing'; it has add, mul");
});

test("a group is awaited, printed and serialised like any object", async () => {
  expect(await group).toBe(group);
  expect(JSON.stringify(group)).toContain("calculator");
  expect(await (group.mul() as PromiseLike<unknown>)).toEqual(["mul"]);
});
