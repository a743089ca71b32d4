import { expect, test } from "vitest";
import { averageRanks, checkedMetrics } from "../../../src/runner/run/reported-metrics.ts";

test("a metric that is no number is refused by its name, value and type", () => {
  expect(() => checkedMetrics({ reward: "0.5" }, "the report")).toThrow(
    expect.objectContaining({
      code: "workflow.invalid",
      message: "metric 'reward' of the report is '0.5' (string), and a number was expected; convert it with Number(…)",
    }),
  );
  expect(() => averageRanks([{ loss: 1 }, { loss: null }], "'actor.train'")).toThrow(
    "metric 'loss' of 'actor.train' is 'null' (object)",
  );
  expect(() => averageRanks([undefined], "'actor.train'")).toThrow(
    "'actor.train' is nothing, and an object of numbers",
  );
});

test("a diverged loss is a number, and ranks are averaged over those that have it", () => {
  expect(checkedMetrics({ loss: Number.NaN }, "the report")).toEqual({ loss: Number.NaN });
  expect(averageRanks([{ loss: 1, kl: 4 }, { loss: 3 }], "'actor.train'")).toEqual({ loss: 2, kl: 4 });
});
