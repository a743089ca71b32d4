import { systemClock } from "@treadle/transport";
import { ActionPool, CommandActions, CpuManager, ProcessDriver } from "../../src/index.ts";
import { type ActionServerOptions, serveActions } from "../../src/serve.ts";

/** A service of plain processes on two cores. */
export async function serveProcesses(options: Partial<ActionServerOptions> = {}) {
  const node = { id: "local", numa: [[0, 1]], memoryBytes: 2 ** 30 };
  const cpu = new CpuManager({ nodes: [node], trajectoryMemoryBytes: 2 ** 20 });
  const actions = new CommandActions(new ActionPool({ managers: [cpu], clock: systemClock }), new ProcessDriver());
  const server = await serveActions(actions, { address: "127.0.0.1:0", ...options });
  const close = async (): Promise<void> => {
    await server.close();
    await actions.close();
  };
  return { server, address: `localhost:${server.port}`, close };
}
