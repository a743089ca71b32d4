/** This process as the one node of its run: the same commands as to any other node, over a control plane within it. */
import type { DeviceSpec, RuntimeConfig } from "@treadle/contracts";
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
  /** what the run may use of each device, where others use the rest */
  readonly memoryMiB?: Readonly<Record<string, number>> | undefined;
};

export function openLocalNode({ cluster, projectRoot, logs, sockets, memoryMiB }: LocalNodeOptions): Nodes {
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
    ownNode: {
      name,
      devices: limited(devicesOfThisMachine(cluster), memoryMiB),
      close: () => service.close("the run is over"),
    },
  });
}

/** As a run without node agents has them. */
export const devicesOfThisMachine = (cluster: RuntimeConfig["cluster"]): DeviceSpec[] => localDevices(cluster, name);

const limited = (devices: readonly DeviceSpec[], memoryMiB: Readonly<Record<string, number>> = {}): DeviceSpec[] =>
  devices.map((device) => {
    const limitBytes = (memoryMiB[device.id] ?? Number.POSITIVE_INFINITY) * 2 ** 20;
    return { ...device, memoryBytes: Math.min(device.memoryBytes, Math.floor(limitBytes)) };
  });
