import { expect, test } from "vitest";
import { nodeInMachine } from "../virtual-machine/test-in-machine.ts";
import { machineLacks } from "../virtual-machine/virtual-machine.ts";

const lacks = await machineLacks();

/** `npm run test:cgroup2` runs all tests of the drivers so. */
test.skipIf(lacks !== undefined)(
  `CG5 CG8 on control groups of version 2 a service makes room in its group, and sandboxes keep their limits${lacks === undefined ? "" : ` (skipped: ${lacks})`}`,
  async () => {
    const words = ["--conditions=source", "--import", "tsx", "test/virtual-machine/sandbox-with-limits.inside.ts"];
    const { output } = await nodeInMachine(words, { limitMs: 570_000 });
    const line = output.split("\n").find((one) => one.startsWith("{"));
    expect(line, output).toBeDefined();
    const { started, ...said } = JSON.parse(line!);
    expect(said).toEqual({
      before: "0::/system.slice/treadle.service",
      now: "0::/system.slice/treadle.service/treadle-service",
      isolation: expect.stringContaining("(version 2)"),
      core: "1",
      hungry: "out-of-memory",
      after: "alive",
      left: 0,
      sessionsOfWorker: 1,
      leftInItsGroup: 0,
    });
    expect(started).toBeLessThan(20);
  },
  600_000,
);
