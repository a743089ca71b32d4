import { expect, test } from "vitest";
import { chaos } from "./chaos.ts";

test("S2, S4, J1: a cluster that is struck at random for a moment trains every prompt once and leaves nothing", async () => {
  const seed = 1;
  const said: string[] = [`--seed ${seed}`];
  const report = await chaos({
    minutes: 0.1,
    seed,
    workflow: "embedded",
    log: (text) => said.push(text),
    pauseMs: 1500,
  }).catch((error) => {
    throw new Error(said.join("\n"), { cause: error });
  });
  expect(report.steps, said.join("\n")).toBeGreaterThan(3);
  expect(Object.values(report.strikes).some((times) => times > 0)).toBe(true);
}, 960_000);
