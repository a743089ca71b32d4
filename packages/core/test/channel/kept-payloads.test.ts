import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { KeptPayloads, type PayloadEffect } from "../../src/channel/kept-payloads.ts";

const workers = ["a/0", "b/0", "c/0"];
const step = fc.tuple(
  fc.constantFrom("enter", "enter-copied", "deliver", "read", "finish", "die"),
  fc.nat(5),
  fc.nat(2),
);

type Modelled = {
  producer: string | undefined;
  readers: string[];
  isFinished: boolean;
  copy?: { readonly node: string; readonly segment: string } | undefined;
};

describe("segments of large items", () => {
  test("are freed once, when finished and read by nobody, to their producer or for good (KP1 to KP4)", () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80 }), (steps) => {
        const payloads = new KeptPayloads();
        const model = new Map<string, Modelled>();
        const freed = new Set<string>();
        let num = 0;
        const judge = (effects: readonly PayloadEffect[]) => {
          const copies = effects.filter((effect) => effect.type === "remove" && effect.node === "b");
          const items = effects.filter((effect) => !copies.includes(effect));
          // KP4: the copies that go are those of the items that are freed with them.
          expect(copies.map(({ segment }) => segment)).toEqual(
            items.flatMap(({ segment }) => model.get(segment)?.copy?.segment ?? []),
          );
          for (const effect of items) {
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
          if (kind === "enter" || kind === "enter-copied") {
            const name = `segment-${++num}`;
            const copy = kind === "enter" ? undefined : { node: "b", segment: `copy-of-${num}` };
            payloads.entered({ segment: name, node: "a", copy }, worker);
            model.set(name, { producer: worker, readers: [], isFinished: false, copy });
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
            // KP4: whoever read on the other node names the copy.
            judge(payloads.read(entry.copy && who > 0 ? entry.copy.segment : segment, worker));
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
