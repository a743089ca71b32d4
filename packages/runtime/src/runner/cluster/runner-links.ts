/**
 * How the runner and its workers reach each other.
 *
 * Owner of: the runner's endpoint, and the relay for workers that can dial nobody here, nor be
 * dialled.
 */
import { join } from "node:path";
import { type Link, TreadleError } from "@treadle/contracts";
import { type Endpoint, type LinkTraffic, openEndpoint, openRelay, type Relay } from "@treadle/transport";
import { localPorts, runnerMember, withRelay, workerTarget } from "../../node/relay-addresses.ts";
import { type RunnerSockets, runnerSocket } from "../../node/socket-folder.ts";
import type { Nodes } from "../nodes/nodes.ts";
import type { ClusterOptions } from "./cluster-options.ts";

export type RunnerLinksOptions = {
  readonly cluster: ClusterOptions;
  readonly nodes: Nodes;
  readonly segmentPrefix: string;
  readonly sockets: RunnerSockets;
  readonly warn: (line: string) => void;
};

export class RunnerLinks {
  readonly #options: RunnerLinksOptions;
  /** what a worker shows when it connects */
  readonly token = crypto.randomUUID();
  #endpoint: Endpoint | undefined;
  #relay: Relay | undefined;

  constructor(options: RunnerLinksOptions) {
    this.#options = options;
  }

  get traffic(): LinkTraffic {
    return this.#endpoint?.traffic ?? { sentBytes: 0, receivedBytes: 0 };
  }

  /** How the names of all shared memory of this runner begin. */
  get segmentPrefix(): string {
    return this.#options.segmentPrefix;
  }

  async open(onLink: (link: Link) => void): Promise<void> {
    const { nodes, segmentPrefix, cluster, sockets, warn } = this.#options;
    const { bind, advertise, tls } = cluster.config.cluster.links;
    // No worker is on the runner's node unless the runner is a node itself.
    if (nodes.isLocal) await sockets.open(segmentPrefix);
    this.#endpoint = await openEndpoint({
      name: "runner",
      runId: cluster.runId,
      token: this.token,
      segments: { prefix: segmentPrefix, scope: nodes.home },
      ...(nodes.isLocal
        ? { unixPath: join(sockets.path, runnerSocket) }
        : { tcp: { host: bind, port: 0, advertise }, tls }),
      onRefused: warn,
    });
    this.#endpoint.onLink(onLink);
    this.#relay = await this.#openRelay(this.#endpoint);
  }

  async close(): Promise<void> {
    await this.#endpoint?.close();
    await this.#relay?.close();
    await this.#options.sockets.close();
  }

  connect(...asked: Parameters<Endpoint["connect"]>): Promise<Link> {
    if (!this.#endpoint) throw new TreadleError("link.closed", "the runner has no endpoint yet");
    return this.#endpoint.connect(...asked);
  }

  /** The runner's own addresses, as a process on `node` reaches them. */
  ownFor(node: string): string[] {
    return this.reachable(this.#endpoint?.addresses ?? [], node, this.#options.nodes.home);
  }

  /** Of the addresses of a process on node `to`, those by which one on node `from` reaches it. */
  reachable(addresses: readonly string[], from: string, to: string): string[] {
    if (from === to) return [...addresses];
    const direct = addresses.filter((address) => !address.startsWith("unix:"));
    if (this.#relay === undefined) return direct;
    return to === this.#options.nodes.home
      ? withRelay(direct, runnerMember, runnerMember)
      : withRelay(direct, to, workerTarget(addresses));
  }

  /** The addresses of a node's depot, and the way around where nobody can dial it. */
  depot(addresses: readonly string[], node: string): string[] {
    return withRelay(addresses, node, this.#relay && "depot");
  }

  /** Not where links are encrypted: what is relayed shows no certificate. */
  #openRelay(endpoint: Endpoint): Promise<Relay> | undefined {
    const { cluster, nodes } = this.#options;
    const { nats, links } = cluster.config.cluster;
    if (nats === undefined || links.tls !== undefined || nodes.isLocal) return undefined;
    const ports = localPorts({ [runnerMember]: endpoint.addresses }, links.bind);
    return openRelay({ nats, runId: cluster.runId, token: this.token, member: runnerMember, ports });
  }
}
