/** The nodes of a run: those that are found at the configured NATS server, or, without one, none but this process. */
import { hostname } from "node:os";
import type { RuntimeConfig } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { Nodes } from "./nodes.ts";

/** Waits for as many as the configuration wants. Rejects with what `connectNodes` does, and `node.unavailable`. */
export async function findNodes(
  config: RuntimeConfig,
  projectRoot: string,
  onNotice: (text: string) => void,
): Promise<Nodes | undefined> {
  const nodes = await connectNodes(config, projectRoot, onNotice);
  try {
    await nodes?.find();
    return nodes;
  } catch (error) {
    await nodes?.close();
    throw error;
  }
}

/** Rejects with `control-plane.unreachable` or `control-plane.refused`. */
export async function connectNodes(
  config: RuntimeConfig,
  projectRoot: string,
  onNotice: (text: string) => void,
  runId?: string,
): Promise<Nodes | undefined> {
  const { cluster } = config;
  if (cluster.nats === undefined) return undefined;
  const plane = await openNatsControlPlane({ nats: cluster.nats, name: `treadle runner on ${hostname()}` });
  plane.onConnection((isConnected) =>
    onNotice(isConnected ? "the control plane is back" : "the control plane is away; calls and data go on meanwhile"),
  );
  return new Nodes({ plane, cluster, projectRoot, runId, onNotice });
}
