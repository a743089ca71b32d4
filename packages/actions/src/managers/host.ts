import { readdirSync, readFileSync } from "node:fs";
import { availableParallelism, totalmem } from "node:os";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import type { CpuNode } from "./cpu.ts";

/** The machine we run on as a CPU node: the cores we may use by NUMA node, and the memory we may use. */
export function describeHost(id = "local"): z.infer<typeof CpuNode> {
  const allowed = allowedCores();
  const folder = "/sys/devices/system/node";
  let numa: number[][] = [];
  try {
    numa = readdirSync(folder)
      .filter((name) => /^node\d+$/.test(name))
      .map((name) =>
        parseCores(readFileSync(join(folder, name, "cpulist"), "utf8")).filter((core) => allowed.includes(core)),
      )
      .filter((cores) => cores.length > 0);
  } catch {
    // No such folder outside Linux: one node.
  }
  // A kernel without NUMA says nothing of some cores.
  const unplaced = allowed.filter((core) => !numa.some((cores) => cores.includes(core)));
  if (unplaced.length > 0) numa.push(unplaced);
  return { id, numa, memoryBytes: Math.min(totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY) };
}

/** The same, on some of its cores. Throws `config.invalid` for others; `key`: of the configuration that names them. */
export function machineOf(numa: number[][] | undefined, key: string): Omit<z.infer<typeof CpuNode>, "id"> {
  const { id: _, ...machine } = describeHost();
  const known = new Set(machine.numa.flat());
  const unknown = (numa ?? []).flat().filter((core) => !known.has(core));
  if (unknown.length > 0)
    throw new TreadleError(
      "config.invalid",
      `${key}: core '${unknown.join(", ")}' is none of this machine's, which are ${[...known].join(", ")}`,
    );
  return { ...machine, numa: numa ?? machine.numa };
}

function allowedCores(): number[] {
  try {
    const line = /^Cpus_allowed_list:\s*(\S+)$/m.exec(readFileSync("/proc/self/status", "utf8"))?.[1];
    if (line !== undefined) return parseCores(line);
  } catch {
    // Not Linux.
  }
  return Array.from({ length: availableParallelism() }, (_, i) => i);
}

/** Reads a list such as `0-3,8`. */
export function parseCores(list: string): number[] {
  return list
    .trim()
    .split(",")
    .filter(Boolean)
    .flatMap((part) => {
      const [from, to] = part.split("-").map(Number);
      return Array.from({ length: (to ?? from!) - from! + 1 }, (_, i) => from! + i);
    });
}
