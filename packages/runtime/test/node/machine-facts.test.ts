import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { machineFacts, numaNodes } from "../../src/node/machine-facts.ts";

test("NUMA nodes are read as Linux shows them, in the order of their numbers, those without cores included", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-numa-"));
  try {
    const nodes = { 10: ["", 1024], 0: ["0-3,8-11\n", 65_923_040], 1: ["4-7,12\n", 66_058_216] } as const;
    for (const [index, [cpulist, kibibytes]] of Object.entries(nodes)) {
      await mkdir(join(folder, `node${index}`));
      await writeFile(join(folder, `node${index}`, "cpulist"), cpulist);
      await writeFile(
        join(folder, `node${index}`, "meminfo"),
        `Node ${index} MemTotal:       ${kibibytes} kB\nNode ${index} MemFree:        12 kB\n`,
      );
    }
    await writeFile(join(folder, "possible"), "0-1\n");
    expect(numaNodes(folder)).toEqual([
      { index: 0, cpus: 8, memoryBytes: 65_923_040 * 1024 },
      { index: 1, cpus: 5, memoryBytes: 66_058_216 * 1024 },
      { index: 10, cpus: 0, memoryBytes: 1024 * 1024 },
    ]);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test("elsewhere there are none, and the machine is what it is", () => {
  expect(numaNodes("/nonexistent")).toEqual([]);
  const facts = machineFacts();
  expect(facts.cpus).toBeGreaterThan(0);
  expect(facts.memoryBytes).toBeGreaterThan(2 ** 20);
});
