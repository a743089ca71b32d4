/** This process as the one node of its run: the same commands as to any other node, over a control plane within it. */
import type { RuntimeConfig } from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import { machineFacts } from "../../node/machine-facts.ts";
import { NodeService } from "../../node/node-service.ts";
import type { RunnerSockets } from "../../node/socket-folder.ts";
import { localDevices } from "./devices.ts";
import { Nodes } from "./nodes.ts";

const name = "node:0";

export type LocalNodeOptions = {
  readonly cluster: RuntimeConfig["cluster"];
  readonly projectRoot: string;
  readonly logs: string;
  readonly sockets: RunnerSockets;
};

export function openLocalNode({ cluster, projectRoot, logs, sockets }: LocalNodeOptions): Nodes {
  const planes = localControlPlanes();
  const service = new NodeService({
    name,
    plane: planes.connect(),
    // Its devices are the runner's own knowledge.
    info: { ...machineFacts(), devices: [], labels: {} },
    projectRoot,
    place: { kind: "runner", socketFolder: () => sockets.path, logs },
  });
  void service.start();
  return new Nodes({
    plane: planes.connect(),
    cluster,
    projectRoot,
    ownNode: { name, devices: localDevices(cluster, name), close: () => service.close("the run is over") },
  });
}
