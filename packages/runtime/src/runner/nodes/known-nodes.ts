/**
 * Labels and numbers of nodes, by which groups name them. A number is a node's own for the whole run, and labels are what it
 * said last: what is placed on nodes that have gone is placed by what they were.
 */
import type { DeviceSpec, NodeInfo, RuntimeConfig } from "@treadle/contracts";
import { type LabelledNode, type NodeLaunch, type NumberedNodes, nodeLaunch } from "./node-groups.ts";

export class KnownNodes {
  readonly #cluster: RuntimeConfig["cluster"];
  readonly #infoOf: (node: string) => NodeInfo | undefined;
  readonly #known = new Map<string, LabelledNode>();

  /** `infoOf`: what a node says of itself, undefined when it is not there. */
  constructor(cluster: RuntimeConfig["cluster"], infoOf: (node: string) => NodeInfo | undefined) {
    this.#cluster = cluster;
    this.#infoOf = infoOf;
  }

  /** The nodes of these devices, in their order. */
  of(devices: readonly DeviceSpec[]): NumberedNodes {
    const nodes = [...new Set(devices.map(({ node }) => node))].map((node) => this.#labelled(node));
    return { nodes, numKnown: this.#known.size };
  }

  /** How worker processes are started on a node. */
  launchOf(node: string): NodeLaunch {
    return nodeLaunch(this.#cluster, this.#labelled(node));
  }

  #labelled(name: string): LabelledNode {
    const before = this.#known.get(name);
    const labels = this.#infoOf(name)?.labels ?? before?.labels ?? {};
    const node = { name, labels, number: before?.number ?? this.#known.size };
    this.#known.set(name, node);
    return node;
  }
}
