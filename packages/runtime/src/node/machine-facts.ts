/** What a machine is, as its node agent reports it. */
import { readdirSync, readFileSync } from "node:fs";
import { availableParallelism, totalmem } from "node:os";
import { join } from "node:path";
import type { NodeInfo } from "@treadle/contracts";

export type MachineFacts = Pick<NodeInfo, "cpus" | "memoryBytes" | "numa" | "platform">;

export function machineFacts(): MachineFacts {
  const limitBytes = process.constrainedMemory() || Number.POSITIVE_INFINITY;
  const numa = numaNodes();
  return {
    cpus: availableParallelism(),
    memoryBytes: Math.min(totalmem(), limitBytes),
    ...(numa.length === 0 ? {} : { numa }),
    platform: process.platform,
  };
}

/** Of Linux; empty elsewhere. Nodes without cores, as of memory alone, are among them. */
export function numaNodes(folder = "/sys/devices/system/node"): NonNullable<NodeInfo["numa"]> {
  try {
    return readdirSync(folder)
      .flatMap((name) => /^node(\d+)$/.exec(name)?.[1] ?? [])
      .map((index) => Number(index))
      .toSorted((a, b) => a - b)
      .map((index) => ({
        index,
        cpus: countCores(readFileSync(join(folder, `node${index}`, "cpulist"), "utf8")),
        memoryBytes: totalMemory(readFileSync(join(folder, `node${index}`, "meminfo"), "utf8")),
      }));
  } catch {
    return [];
  }
}

/** A list such as `0-3,8`. */
function countCores(list: string): number {
  return list
    .trim()
    .split(",")
    .filter(Boolean)
    .reduce((count, part) => {
      const [from = 0, to = from] = part.split("-").map(Number);
      return count + to - from + 1;
    }, 0);
}

function totalMemory(meminfo: string): number {
  const kibibytes = /MemTotal:\s+(\d+) kB/.exec(meminfo)?.[1];
  return Number(kibibytes ?? 0) * 1024;
}
