import { expect, test } from "vitest";
import { sharingOptions } from "../src/commands/pool-limits.ts";
import { slowdownTable } from "../src/view/slowdown-table.ts";

const flags = {
  ...{ turn: "10", patience: "60", yieldLimit: "600", beatLimit: "15", method: "greedy", window: "3" },
};

test("a method that decides nothing while runs go on is refused, with those that do", () => {
  expect(sharingOptions(flags, "/project")).toEqual({
    ...{ method: "greedy", window: 3 },
    slowdowns: "/project/.treadle/slowdowns.json",
  });
  expect(() => sharingOptions({ ...flags, method: "serial" }, "/project")).toThrow(
    "--method is 'serial'; expected one of greedy, lookahead, playout, temporal",
  );
  expect(() => sharingOptions({ ...flags, window: "0" }, "/project")).toThrow("--window");
});

test("slowdowns are shown with their errors", () => {
  const measured = { work: "train@a", beside: "rollout@b", memory: 0.4, factor: 1.3004, error: 0.0123, samples: 7.6 };
  expect(slowdownTable([measured]).split("\n").at(-1)).toBe("| train@a | rollout@b | 40 % | 1.300 | 0.012 | 8 |");
});
