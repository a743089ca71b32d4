import { expect, test } from "vitest";
import { treadle } from "../support/treadle.ts";

test("drawn workloads that no plan fits, and wishes that make no sense, are told of one by one, each with its reason", async () => {
  const { code, stdout } = await treadle(
    ["compare", "test/support/workflows/impossible-draws", "--random", "5", "--seed", "3", "--shrink", "0"].concat([
      "--parallel",
      "2",
    ]),
  );
  expect(code).toBe(0);
  for (const [index, reason] of [
    "component 'last' needs 3 devices on one node",
    "'first' and 'last' cannot be kept both apart and together; drop one of the two wishes",
    "placement.wishes.maxRanks.last: too small: expected number to be >0; got '0'",
    "stages.last.ranks.max: too small: expected number to be >0; got '0'",
    "'0-1' leaves none of 2 devices to run on; keep fewer free",
  ].entries()) {
    const line = stdout.split(`- 3-${index} did not run: `)[1]?.split("\n- ")[0];
    expect(line).toContain(reason);
  }
}, 60_000);
