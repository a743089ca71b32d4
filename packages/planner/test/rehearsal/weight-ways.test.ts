/** New weights take the time of the way that they go, in estimates, too. */
import type { Plan } from "@treadle/contracts";
import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { weightBytes, weightsSeconds } from "../../src/rehearsal/costs.ts";
import { figuresOf } from "../../src/rehearsal/device-figures.ts";
import { rehearse, withArithmetic } from "../../src/rehearsal/rehearse.ts";
import { areSameWays, rehearsedWays, slowestWays, type WeightWays } from "../../src/rehearsal/weight-ways.ts";
import { type ModelEngine, weightPathNames } from "../../src/weights/weight-paths.ts";
import { model, setting, traced } from "./eight-billion.ts";

const gib = 2 ** 30;
const hardware = { figures: figuresOf("h200"), shape: setting.shape, lengths: setting.lengths };

test("whole weights go to each rank at the rate of their way, and nothing moves where there is one module", () => {
  const bytes = weightBytes(hardware.shape);
  const seconds = (way?: (typeof weightPathNames)[number]) => weightsSeconds(hardware, 64, 2, way);
  expect(seconds("shared")).toBe(0);
  expect(seconds("ipc")).toBeCloseTo(bytes / (18 * gib), 6);
  expect(seconds("disk")).toBeCloseTo(bytes / (0.64 * gib), 6);
  expect(seconds("bytes")).toBeCloseTo((2 * bytes) / (0.044 * gib), 3); // as float32
  expect(seconds("collective")).toBe(seconds("disk"));
  expect(seconds()).toBeCloseTo(bytes / 2 / (0.7 * 50e9), 6);
});

const engines = (kind: "torch" | "embedded" | "emulated"): ModelEngine[] => [
  { name: "rollout", work: "generation", engine: { kind } },
  { name: "actor", work: "training", engine: { kind } },
];
const on = (...devices: string[]): Plan["components"][string] =>
  ({ ranks: devices.map((id) => ({ node: id.split("/")[0]!, devices: [id] })) }) as never;

test("the way is that of the planned ranks: a device that both compute on, a node's memory, Node between nodes", () => {
  const waysOf = (
    rollout: string[],
    actor: string[],
    kind: "torch" | "embedded" | "emulated" = "torch",
    device = "h200",
  ) => rehearsedWays({ components: { rollout: on(...rollout), actor: on(...actor) } }, engines(kind), device).ways;
  expect(waysOf(["node-0/h200:0"], ["node-0/h200:0"])).toEqual({ rollout: "ipc" });
  expect(waysOf(["node-0/h200:1"], ["node-0/h200:0"])).toEqual({ rollout: "disk" });
  expect(waysOf(["node-1/h200:0"], ["node-0/h200:0"])).toEqual({ rollout: "bytes" });
  // The slowest of the ranks.
  expect(waysOf(["node-0/h200:0", "node-1/h200:0"], ["node-0/h200:0"])).toEqual({ rollout: "bytes" });
  // What runs no such model is taken for PyTorch; other makers' devices map no memory.
  expect(waysOf(["node-0/h200:0"], ["node-0/h200:0"], "embedded")).toEqual({ rollout: "ipc" });
  expect(waysOf(["node-0/mi300x:0"], ["node-0/mi300x:0"], "torch", "mi300x")).toEqual({ rollout: "disk" });
  expect(waysOf(["node-0/h200:0"], ["node-0/h200:0"], "emulated")).toEqual({});
});

test("ways only become slower, so that plans that disagree end", () => {
  const ways = fc.dictionary(fc.constantFrom("a", "b", "c"), fc.constantFrom(...weightPathNames));
  fc.assert(
    fc.property(ways, ways, (one, other) => {
      const both = slowestWays(one, other);
      expect(areSameWays(slowestWays(both, one), both)).toBe(true);
      expect(areSameWays(slowestWays(both, other), both)).toBe(true);
      expect(areSameWays(both, slowestWays(other, one))).toBe(true);
    }),
  );
});

test("the estimate has the way's time and says which it is", () => {
  const serial = (ways?: WeightWays) => {
    const { profile, parts } = rehearse(traced, { ...setting, ways });
    return { seconds: profile.components["rollout"]!.serialSeconds, arithmetic: parts[0]!.arithmetic.join("\n") };
  };
  expect(serial({ rollout: "bytes" }).seconds).toBeGreaterThan(600);
  expect(serial({ rollout: "bytes" }).arithmetic).toMatch(/new weights by 'bytes': 30\.5 GiB at 45\.\d MiB\/s/);
  expect(serial({ rollout: "disk" }).seconds).toBeLessThan(30);
  expect(serial().arithmetic).not.toContain("new weights");
});

test("what a plan refuses for its memory says what the memory is made of, and ends with the remedy", () => {
  const { parts } = rehearse(traced, { ...setting, device: "b200", devices: 16, shape: model(16384, 96) });
  const refusal = new TreadleError("placement.impossible", "component 'actor' needs 9 GiB; a remedy", {
    details: { component: "actor", neededBytes: 9 },
  });
  const said = (error: Error): string => {
    try {
      return withArithmetic({ parts }, () => {
        throw error;
      });
    } catch (thrown) {
      return (thrown as Error).message;
    }
  };
  expect(said(refusal)).toMatch(
    /^component 'actor' needs 9 GiB \(.*each of 18 bytes \(weights 2.*over 16 devices.*logits.*\); a remedy$/,
  );
  const other = new TreadleError("placement.impossible", "component 'x' has no ranks; a remedy");
  expect(said(other)).toBe(other.message);
});
