/** What a figure promises is printed, and held against it. */
import { expect, test } from "vitest";
import { renderFigure, toFigure } from "../src/view/figures.ts";

const printed = (value: number, bounds: { readonly ratioAtMost?: number; readonly ratioAtLeast?: number }) => {
  const row = { name: "by leases", value, unit: "s", baseline: 10, against: "simulated", ratio: value / 10 };
  return renderFigure(toFigure("multiplex", { ...row, ...bounds, notMeasured: "" }), false);
};

test("a figure says each bound that it has, and whether it keeps both", () => {
  const both = { ratioAtLeast: 0.97, ratioAtMost: 1.03 };
  expect(printed(10, both)).toContain("from 0.97× to 1.03× wanted (as promised)");
  for (const value of [9, 11]) expect(printed(value, both)).toContain("from 0.97× to 1.03× wanted (missed)");
  expect(printed(10, { ratioAtMost: 1.03 })).toContain("at most 1.03× wanted (as promised)");
  expect(printed(9, { ratioAtLeast: 0.97 })).toContain("at least 0.97× wanted (missed)");
  expect(printed(10, {})).not.toContain("wanted");
});
