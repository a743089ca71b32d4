import { solvePlan } from "@treadle/planner";
import { expect, test } from "vitest";
import { benchProblem } from "../src/planner.ts";

test("runners-up of ten components in a wide graph on 1024 devices are proven, or bounded within 5 %", () => {
  for (const [seed, proven] of [
    [3, true],
    [6, false],
  ] as const) {
    const { alternatives } = solvePlan(benchProblem({ nodes: 10, devices: 1024, graph: "dag", seed }));
    expect(alternatives).toHaveLength(3);
    expect(alternatives.every((each) => each.proven)).toBe(proven);
    for (const { bound, time } of alternatives) expect(bound).toBeGreaterThan(0.95 * time);
  }
});

test("where the proof of a mode ends without a schedule, one is found roughly; none is called infeasible unless that is proven", () => {
  const problem = benchProblem({ nodes: 10, devices: 64, graph: "dag", seed: 5 });
  const wide = solvePlan(problem);
  expect(wide.alternatives.map(({ mode }) => mode)).toContain("spatial");
  expect(wide.explanation.join()).not.toContain("no spatial schedule");
  const nodes = problem.nodes.map((node) => ({ ...node, memory: {} }));
  const crowded = solvePlan({ devices: 8, batch: problem.batch, nodes, edges: problem.edges });
  expect(crowded.explanation.join()).toContain("no spatial schedule is feasible: there are more components than");
});
