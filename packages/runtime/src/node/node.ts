/** This machine as a node of a cluster, in a process of its own: what `treadle node` runs. */
import { realpath } from "node:fs/promises";
import {
  checkPlatform,
  type LinksConfig,
  type MetricsConfig,
  type NatsConfig,
  type OtlpConfig,
  type WorkerPermissions,
} from "@treadle/contracts";
import {
  createNodeRegistry,
  inertNodeSpans,
  isSpanExportWanted,
  type MetricsServer,
  type NodeRegistry,
  openNodeSpans,
  serveMetrics,
} from "@treadle/observe";
import { openNatsControlPlane, openRelay } from "@treadle/transport";
import { machineDevices } from "./machine-devices.ts";
import { machineFacts } from "./machine-facts.ts";
import { defaultNodeName } from "./node-name.ts";
import { NodeService } from "./node-service.ts";
import { checkSocketRoot, openSocketFolder } from "./socket-folder.ts";

export type NodeOptions = {
  readonly nats: NatsConfig;
  /** default: the machine's name, and what tells it from its clones */
  readonly name?: string | undefined;
  /** only modules below it are run */
  readonly projectRoot: string;
  readonly links: LinksConfig;
  /** what runners may say of how workers are started here */
  readonly permissions: WorkerPermissions;
  readonly labels?: Readonly<Record<string, string>>;
  /** custom devices, as `{ robot: 2 }` */
  readonly devices?: Readonly<Record<string, number>>;
  /** where metrics of this node and its workers are served */
  readonly metrics?: MetricsConfig | undefined;
  /** where spans of what this node does are sent, unless the environment says */
  readonly otlp?: OtlpConfig | undefined;
  /** time without the control plane after which workers are ended */
  readonly cutOffMs: number;
  /** processes that have loaded Treadle and wait to replace a worker, at most; default none */
  readonly spareWorkers?: number | undefined;
  readonly onNotice: (text: string) => void;
};

export type Node = {
  readonly name: string;
  readonly incarnation: number;
  /** resolves when another agent of the same name has taken this one's place */
  readonly replaced: Promise<void>;
  /** has runs take their workers away between two steps; false when some are still here at the limit */
  drain(limitMs: number): Promise<boolean>;
  /** leaves, and ends every worker */
  close(reason: string): Promise<void>;
};

/** How long a node that leaves waits for its last spans to be taken. */
const lastSpansMs = 5000;

/** Rejects with `control-plane.unreachable`, `control-plane.refused`, `config.invalid`, `metrics.unavailable`, `node.name-taken` or `platform.unsupported`. */
export async function openNode(options: NodeOptions): Promise<Node> {
  checkPlatform(process);
  checkSocketRoot();
  const { nats, links, permissions, labels = {}, devices = {}, cutOffMs, spareWorkers, onNotice } = options;
  const name = options.name ?? defaultNodeName();
  const info = { ...machineFacts(), devices: machineDevices(devices), labels: { ...labels } };
  const projectRoot = await realpath(options.projectRoot);
  const registry = options.metrics && (await createNodeRegistry(name, info));
  const metrics = await openMetrics(registry, options);
  const spans = isSpanExportWanted(options.otlp)
    ? await openNodeSpans(name, { config: options.otlp, onNotice })
    : inertNodeSpans;
  const asNode = { nats, name: `treadle node ${name}`, keepsRecords: false };
  const plane = await openNatsControlPlane(asNode).catch(async (error: Error) => {
    await spans.close(lastSpansMs, error.message);
    await metrics?.close();
    throw error;
  });
  plane.onConnection((isConnected) => {
    registry?.connected(isConnected);
    onNotice(isConnected ? "the control plane is back" : "the control plane is away");
  });
  const service = new NodeService({
    name,
    plane,
    info,
    projectRoot,
    place: {
      kind: "machine",
      links,
      permissions,
      openFolder: openSocketFolder,
      openRelay: (relay) => openRelay({ ...relay, nats }),
      cutOffMs,
      spareWorkers,
    },
    observer: registry,
    spans,
    onNotice,
  });
  const close = async (reason: string) => {
    await service.close(reason);
    await plane.close();
    await spans.close(lastSpansMs);
    await metrics?.close();
  };
  try {
    let replace = () => {};
    const replaced = new Promise<void>((resolve) => {
      replace = resolve;
    });
    await service.start(() => replace());
    const drain = (limitMs: number) => service.drain(limitMs);
    return { name, incarnation: service.incarnation, replaced, drain, close };
  } catch (error) {
    await close("it could not start");
    throw error;
  }
}

async function openMetrics(
  registry: NodeRegistry | undefined,
  { metrics, onNotice }: NodeOptions,
): Promise<MetricsServer | undefined> {
  if (registry === undefined || metrics === undefined) return undefined;
  const server = await serveMetrics(registry, metrics);
  onNotice(`metrics are at ${server.url}`);
  return server;
}
