/**
 * Ends trajectories before the kernel has to: reservations may be overcommitted, so that together they may want more memory
 * than the machine has, and the kernel would end whatever it likes. Those furthest above their reservation go first
 * (`CpuManager.outOfMemory`), each with `sandbox.lost` and this cause.
 */
import { readFileSync } from "node:fs";
import { freemem } from "node:os";
import type { Clock } from "@treadle/contracts";
import type { CpuManager } from "../managers/cpu.ts";
import type { CommandActions } from "./command-actions.ts";

export type MemoryGuardOptions = {
  readonly actions: CommandActions;
  readonly cpu: CpuManager;
  readonly clock: Clock;
  readonly memory: () => ReadonlyMap<string, NodeMemory>;
};

export type NodeMemory = {
  /** what its kernel can still give, without swap */
  readonly availableBytes: number;
  /** below which trajectories are ended, until as much is free */
  readonly reserveBytes: number;
  /** of figures that come from elsewhere, which: those from before an end do not show what it freed */
  readonly reading?: object | undefined;
};

const lookMs = 250;

/** Watches until the returned function is called. */
export function guardMemory(options: MemoryGuardOptions): () => void {
  const { actions, cpu, clock, memory } = options;
  let disarm: () => void = () => {};
  let isOver = false;
  const actedOn = new Map<string, object>();
  const busy = new Set<string>();
  /** Of one node; what another does not answer holds up none of its own. */
  const relieve = async (nodeId: string, { availableBytes, reserveBytes }: NodeMemory): Promise<void> => {
    const ofNode = cpu.byNode(actions.usedBytes()).get(nodeId) ?? new Map<string, number>();
    const total = [...ofNode.values()].reduce((sum, bytes) => sum + bytes, 0);
    for (const trajectory of cpu.outOfMemory(nodeId, ofNode, total - (reserveBytes - availableBytes)))
      await actions.end(
        trajectory,
        `node '${nodeId}' ran out of memory, and it used ${ofNode.get(trajectory)} bytes, the most above its reservation; lower overcommit, or reserve more for it`,
      );
    const { reading } = memory().get(nodeId) ?? {};
    if (reading !== undefined) actedOn.set(nodeId, reading);
  };
  const look = (): void => {
    for (const [nodeId, node] of memory()) {
      const isSeen = node.reading !== undefined && actedOn.get(nodeId) === node.reading;
      if (node.availableBytes >= node.reserveBytes || isSeen || busy.has(nodeId)) continue;
      busy.add(nodeId);
      // What cannot be ended, or asked, now is so the next time: while memory is short, much fails.
      void relieve(nodeId, node)
        .catch(() => {})
        .then(() => busy.delete(nodeId));
    }
    if (!isOver) disarm = clock.after(lookMs, look);
  };
  disarm = clock.after(lookMs, look);
  return () => {
    isOver = true;
    disarm();
  };
}

/** What the kernel of this machine can give without ending anything, without swap. */
export function availableOfHost(): number {
  try {
    const kibibytes = /^MemAvailable:\s+(\d+) kB$/m.exec(readFileSync("/proc/meminfo", "utf8"))?.[1];
    if (kibibytes !== undefined) return Number(kibibytes) * 1024;
  } catch {
    // Not Linux.
  }
  return freemem();
}
