/** A node agent in this process, of a machine that is always the same and allows nothing beyond modules of its project. */
import { type ControlPlane, LinksConfig, WorkerPermissions } from "@treadle/contracts";
import { NodeService } from "../../packages/runtime/src/node/node-service.ts";
import { openSocketFolder } from "../../packages/runtime/src/node/socket-folder.ts";

export async function startNodeService(
  plane: ControlPlane,
  projectRoot: string,
  cutOffMs: number,
): Promise<NodeService> {
  const service = new NodeService({
    name: "a",
    plane,
    info: { cpus: 2, memoryBytes: 2 ** 30, devices: [], labels: {}, platform: "linux" },
    projectRoot,
    place: {
      kind: "machine",
      links: LinksConfig.parse({}),
      permissions: WorkerPermissions.parse({}),
      openFolder: openSocketFolder,
      cutOffMs,
    },
  });
  await service.start();
  return service;
}
