import { solvePlan } from "@treadle/planner";
import { expect, test } from "vitest";
import { benchProblem } from "../src/planner.ts";

test("where the proof of a mode ends without a schedule, one is found roughly; none is called infeasible unless that is proven", () => {
  const problem = benchProblem({ nodes: 10, devices: 64, graph: "dag", seed: 5 });
  const wide = solvePlan(problem);
  expect(wide.alternatives.map(({ mode }) => mode)).toContain("spatial");
  expect(wide.explanation.join()).not.toContain("no spatial schedule");
  const nodes = problem.nodes.map((node) => ({ ...node, memory: {} }));
  const crowded = solvePlan({ devices: 8, batch: problem.batch, nodes, edges: problem.edges });
  expect(crowded.explanation.join()).toContain("no spatial schedule is feasible: there are more components than");
});
