import type { Profile } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { stepWithEnds } from "../src/auto/stream-ends.ts";
import { compileModel, PlanProblem, type Schedule } from "../src/index.ts";
import { costSchedule } from "../src/plan/evaluate.ts";

const stage = fc.record({ perChunk: fc.integer({ min: 1, max: 50 }), once: fc.integer({ min: 0, max: 200 }) });

test("what stages do once follows their last chunk, as if played chunk by chunk", () => {
  fc.assert(
    fc.property(fc.array(stage, { minLength: 2, maxLength: 4 }), fc.constantFrom(1, 2, 4, 8), (stages, chunks) => {
      const batch = 8;
      const chunk = batch / chunks;
      const nodes = stages.map(({ perChunk, once }, i) => ({
        id: `c${i}`,
        time: { type: "formula", perItem: (perChunk + once / chunks) / chunk },
      }));
      const edges = nodes.slice(1).map(({ id }, i) => [`c${i}`, id]);
      const model = compileModel(PlanProblem.parse({ devices: stages.length, batch, nodes, edges, pipeline: "kway" }));
      const parts = nodes.map(({ id }): Schedule => ({ op: "node", node: id, devices: 1, items: chunk }));
      const size = { op: "pipeline", devices: stages.length, items: batch, chunk } as const;
      const schedule: Schedule =
        parts.length > 2 ? { ...size, stages: parts } : { ...size, first: parts[0]!, second: parts[1]! };
      const ofStages = Object.fromEntries(stages.map(({ once }, i) => [`c${i}`, { onceSeconds: once }]));
      const predicted = stepWithEnds(
        costSchedule(model, schedule),
        { components: ofStages as unknown as Profile["components"] },
        batch,
      );
      const before = Array.from({ length: chunks }, () => 0);
      let end = 0;
      for (const { perChunk, once } of stages) {
        let free = 0;
        for (let i = 0; i < chunks; i++) {
          free = Math.max(free, before[i]!) + perChunk;
          before[i] = free;
        }
        end = Math.max(end, free + once);
      }
      // A whole batch was measured with what is done once, which its consumer waits for.
      if (chunks > 1) expect(predicted).toBeCloseTo(end, 6);
      else expect(predicted).toBeGreaterThanOrEqual(end - 1e-6);
    }),
    { numRuns: 300 },
  );
});
