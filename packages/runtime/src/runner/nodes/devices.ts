/** The devices of a run, as its configuration asks for them: of the runner's own machine, and of node agents. */
import { availableParallelism, totalmem } from "node:os";
import type { DeviceSpec, NodeInfo, RuntimeConfig } from "@treadle/contracts";
import { findAccelerators } from "../../node/accelerators.ts";

/**
 * `auto` gives every accelerator and one CPU device a core, accelerators first; a number gives so many CPU devices. These
 * are slots for one engine process each; the operating system shares the cores among them, so there may be more of them
 * than cores. Their memory is an even share of the machine's unless configured.
 */
export function localDevices(config: RuntimeConfig["cluster"], node: string): DeviceSpec[] {
  const count = config.devices === "auto" ? availableParallelism() : config.devices;
  const memoryBytes =
    config.memoryPerDeviceMiB === undefined ? Math.floor(totalmem() / count) : config.memoryPerDeviceMiB * 2 ** 20;
  const cpus = Array.from({ length: count }, (_, index) => ({
    id: `cpu:${index}`,
    index,
    node,
    kind: "cpu",
    memoryBytes,
  }));
  if (config.devices !== "auto") return cpus;
  const found = findAccelerators().map(({ kind, index, memoryBytes: bytes, name }) => {
    return { id: `${kind}:${index}`, index, node, kind, memoryBytes: bytes, ...(name && { name }) };
  });
  return [...found, ...cpus];
}

export type NodeDevices = {
  /** The devices of these nodes; a node that comes back has the ones that it had. */
  of(nodes: readonly { readonly name: string; readonly info: NodeInfo }[]): DeviceSpec[];
  /** The same, with CPU devices on each node: where a number was shared out before it came, as many as gone nodes had, or one. */
  withSpares(nodes: readonly { readonly name: string; readonly info: NodeInfo }[]): DeviceSpec[];
};

/**
 * Devices of a cluster are numbered over all its nodes, in the order of their names. `auto` gives every accelerator and
 * custom device, and one CPU device a core; a number gives so many CPU devices in all, spread evenly, which are slots
 * for one engine process each. Their memory is an even share of their node's unless configured.
 */
export function shareOutDevices(config: RuntimeConfig["cluster"]): NodeDevices {
  const slots = new Map<string, number>();
  const numbers = new Map<string, number>();
  const next = new Map<string, number>();
  const numberOf = (id: string, kind: string): number => {
    const known = numbers.get(id) ?? next.get(kind) ?? 0;
    if (!numbers.has(id)) next.set(kind, known + 1);
    numbers.set(id, known);
    return known;
  };
  const shareOut = (nodes: readonly string[]): void => {
    if (config.devices === "auto" || slots.size > 0) return;
    const even = Math.floor(config.devices / nodes.length);
    const rest = config.devices % nodes.length;
    for (const [i, name] of nodes.entries()) slots.set(name, even + (i < rest ? 1 : 0));
  };
  const list: NodeDevices["of"] = (nodes) => {
    const sorted = nodes.toSorted((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    shareOut(sorted.map(({ name }) => name));
    return sorted.flatMap(({ name: node, info }) => {
      const count = config.devices === "auto" ? info.cpus : (slots.get(node) ?? 0);
      const { memoryPerDeviceMiB } = config;
      const memoryBytes =
        memoryPerDeviceMiB === undefined
          ? Math.floor(info.memoryBytes / Math.max(1, count))
          : memoryPerDeviceMiB * 2 ** 20;
      const cpus: NodeInfo["devices"] = Array.from({ length: count }, (_, index) => {
        return { kind: "cpu", index, memoryBytes };
      });
      const others = config.devices === "auto" ? info.devices : [];
      return [...others, ...cpus].map(({ kind, index, memoryBytes: bytes, name }) => {
        const id = `${node}/${kind}:${index}`;
        return { id, index: numberOf(id, kind), node, kind, memoryBytes: bytes, ...(name && { name }) };
      });
    });
  };
  return {
    of: list,
    withSpares: (nodes) => {
      const present = new Set(nodes.map(({ name }) => name));
      const numGone = [...slots].reduce((sum, [name, count]) => sum + (present.has(name) ? 0 : count), 0);
      for (const { name } of nodes)
        if ((slots.get(name) ?? 0) === 0 && slots.size > 0) slots.set(name, Math.max(1, numGone));
      return list(nodes);
    },
  };
}
