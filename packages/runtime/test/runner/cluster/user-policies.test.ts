import { expect, test } from "vitest";
import { bounded, timed, userPolicy } from "../../../src/runner/cluster/user-policy.ts";

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
  expect(() => failing(items, take)).toThrow(expect.objectContaining({ name: "RangeError", message: "of its own" }));
});

test("what it throws and answers is read within its time, too", () => {
  const forever = {
    get: (): never => {
      for (;;);
    },
  };
  const thrown = bounded(() => {
    throw Object.defineProperty(new Error("hidden"), "message", forever);
  });
  expect(() => thrown(items, take)).toThrow("it did not answer within 1000 ms");
  const answered = bounded(() => Object.defineProperty([0, 0], 1, forever));
  expect(() => answered(items, take)).toThrow("it did not answer within 1000 ms");
  const mute = bounded(() => {
    throw Object.create(null);
  });
  expect(() => mute(items, take)).toThrow("it threw what cannot be read");
});

test("what is no array, or no array of numbers, is made into text within its time, and looked at never again", () => {
  const spin = () => {
    for (;;);
  };
  const late = "it did not answer within 1000 ms";
  const spinning = { toString: spin };
  const answers: unknown[] = [spinning, [spinning], new Proxy([0], { get: spin }), Object.assign([0], { slice: spin })];
  for (const answer of answers.slice(0, 3)) expect(() => bounded(() => answer as number[])(items, take)).toThrow(late);
  expect(bounded(() => answers[3] as number[])(items, take)).toEqual([0]); // its own `slice` is nobody's
  class Odd extends Array<number> {
    static override get [Symbol.species](): ArrayConstructor {
      return spin();
    }
  }
  expect(bounded(() => Odd.of(1, 2))(items, take)).toEqual([1, 2]);
  const unnumbered = new Proxy([0], { get: (array, key) => (key === "length" ? Number.NaN : Reflect.get(array, key)) });
  expect(bounded(() => unnumbered)(items, take)).toBe("an array without a length");
  expect(bounded(() => ["x".repeat(1e6)] as never)(items, take)).toEqual(["x".repeat(100)]);
});

test("an async one is refused, and what it rejects with later ends nothing", async () => {
  const rejections: unknown[] = [];
  const heard = (reason: unknown) => rejections.push(reason);
  process.on("unhandledRejection", heard);
  try {
    const late = bounded((async () => {
      throw new Error("later");
    }) as never);
    expect(() => late(items, take)).toThrow("it is async, and has to answer at once");
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(rejections).toEqual([]);
  } finally {
    process.off("unhandledRejection", heard);
  }
});

test("one that answers in time each time, and takes long together, is told once", () => {
  const told: number[] = [];
  let nowMs = 0;
  const mine = timed(
    () => {
      nowMs += 900;
      return [0];
    },
    (numCalls) => told.push(numCalls),
    () => nowMs,
  );
  for (let call = 0; call < 40; call++) expect(mine(items, take)).toEqual([0]);
  expect(told).toEqual([12]);
});

test("one that no module exports is refused, since a replay could not find it", () => {
  const mine = () => [0];
  const quiet = () => {};
  const module = { url: "file:///project/run.ts", exports: { mine } };
  expect(userPolicy("in", mine, module, quiet)).toMatchObject({ module: module.url, exportName: "mine" });
  expect(() => userPolicy("in", () => [0], module, quiet)).toThrow(
    "is not exported by the workflow's module; export it there",
  );
  expect(() => userPolicy("in", mine, undefined, quiet)).toThrow("channel 'in'");
});
