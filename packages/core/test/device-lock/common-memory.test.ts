/** Memory that workers have in common, against a plain count of what lies on the device. */
import type { ReleasableTag, TagMemory } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { ResidencyTable, type Want } from "../../src/device-lock/residency.ts";

const device = "cuda:0";
const seconds = { releaseSeconds: 1, restoreSeconds: 1 };
const spec = fc.record({
  weights: fc.integer({ min: 1, max: 6 }),
  cache: fc.integer({ min: 0, max: 4 }),
  module: fc.constantFrom(undefined, "a", "b"),
});

test("MT5 it counts once, is given back with the last that has it, and a grant always finds its room", () => {
  const sizes = { a: 5, b: 3 };
  fc.assert(
    fc.property(
      fc.array(spec, { minLength: 2, maxLength: 5 }),
      fc.array(fc.record({ worker: fc.nat(), tag: fc.constantFrom("weights", "cache", undefined) }), { maxLength: 12 }),
      fc.integer({ min: 10, max: 20 }),
      (specs, grants, capacityBytes) => {
        const table = new ResidencyTable();
        table.addDevice({ device, capacityBytes });
        const held = new Map<string, Set<ReleasableTag>>();
        for (const [index, { weights, cache, module }] of specs.entries()) {
          const worker = `w/${index}`;
          table.addWorker({ worker, devices: [device], residentBytes: undefined, loaded: false } as never);
          const bytes = module === undefined ? weights : sizes[module];
          const tags: TagMemory[] = [
            { tag: "weights", bytes, ...seconds, ...(module !== undefined && { sharedAs: module }) },
            { tag: "cache", bytes: cache, ...seconds },
          ];
          table.report(table.get(worker)!, bytes + cache, tags);
          held.set(worker, new Set());
        }
        /** Each memory of a worker's own, and each module that somebody has. */
        const onDevice = () => {
          let sum = 0;
          const modules = new Set<"a" | "b">();
          for (const [index, { weights, cache, module }] of specs.entries()) {
            const tags = held.get(`w/${index}`)!;
            if (tags.has("cache")) sum += cache;
            if (tags.has("weights") && module === undefined) sum += weights;
            if (tags.has("weights") && module !== undefined) modules.add(module);
          }
          return sum + [...modules].reduce((all, module) => all + sizes[module], 0);
        };
        const swap = (type: "onload" | "offload", { worker, parts }: Want) => {
          if (parts.length === 0) return;
          table.startSwap(worker, type, parts);
          const tags = held.get(worker.worker)!;
          for (const { tag } of parts) tags[type === "onload" ? "add" : "delete"](tag!);
          const left = worker.parts.reduce((sum, part) => sum + (tags.has(part.tag!) ? part.bytes : 0), 0);
          table.endSwap(worker, true, left);
        };
        for (const { worker: drawn, tag } of grants) {
          const worker = table.get(`w/${drawn % specs.length}`)!;
          const want = { worker, parts: worker.parts.filter((part) => tag === undefined || part.tag === tag) };
          table.touch(worker);
          const before = onDevice();
          let room = table.roomFor([want]);
          const missing = want.parts.reduce((sum, part) => sum + part.bytes, 0);
          if (before + missing <= capacityBytes) expect(room.fits).toBe(true);
          if (!room.fits) for (const one of room.offload) swap("offload", one);
          room = table.roomFor([want]);
          expect(room.fits).toBe(true);
          swap("onload", { worker, parts: want.parts.filter((part) => !part.isLoaded) });
          expect(onDevice()).toBeLessThanOrEqual(capacityBytes);
          expect(table.devices[0]!.usedBytes).toBe(onDevice());
        }
      },
    ),
    { numRuns: 2000 },
  );
});
