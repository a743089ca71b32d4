import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { KeptPayloads, type PayloadEffect } from "../../src/channel/kept-payloads.ts";

const workers = ["a/0", "b/0", "c/0"];
const step = fc.tuple(fc.constantFrom("enter", "deliver", "read", "finish", "die"), fc.nat(5), fc.nat(2));

describe("segments of large items", () => {
  test("are freed once, when finished and read by nobody, to their producer or for good (V1 to V3)", () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80 }), (steps) => {
        const payloads = new KeptPayloads();
        const model = new Map<string, { producer: string | undefined; readers: string[]; isFinished: boolean }>();
        const freed = new Set<string>();
        let num = 0;
        const judge = (effects: readonly PayloadEffect[]) => {
          for (const effect of effects) {
            const entry = model.get(effect.segment);
            expect(freed.has(effect.segment)).toBe(false);
            expect(entry).toMatchObject({ readers: [], isFinished: true });
            expect(effect.type === "reuse" ? effect.producer : undefined).toBe(entry?.producer);
            freed.add(effect.segment);
            model.delete(effect.segment);
          }
          for (const { readers, isFinished } of model.values()) expect(isFinished && readers.length === 0).toBe(false);
          expect(payloads.size).toBe(model.size);
        };
        for (const [kind, at, who] of steps) {
          const worker = workers[who] as string;
          const segment = [...model.keys()][at % Math.max(1, model.size)];
          const entry = segment === undefined ? undefined : model.get(segment);
          if (kind === "enter") {
            const name = `segment-${++num}`;
            payloads.entered({ segment: name }, worker);
            model.set(name, { producer: worker, readers: [], isFinished: false });
          } else if (kind === "die") {
            for (const each of model.values()) {
              if (each.producer === worker) each.producer = undefined;
              each.readers = each.readers.filter((reader) => reader !== worker);
            }
            judge(payloads.workerDied(worker));
          } else if (segment === undefined || entry === undefined) continue;
          else if (kind === "deliver" && !entry.isFinished) {
            payloads.delivered(segment, worker);
            entry.readers.push(worker);
          } else if (kind === "read") {
            const index = entry.readers.indexOf(worker);
            if (index >= 0) entry.readers.splice(index, 1);
            judge(payloads.read(segment, worker));
          } else if (kind === "finish") {
            entry.isFinished = true;
            judge(payloads.finished(segment));
          }
        }
      }),
      { numRuns: 300 },
    );
  });
});
