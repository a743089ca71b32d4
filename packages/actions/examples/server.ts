/**
 * Serves actions on this machine's cores: `npx tsx --conditions=source packages/actions/examples/server.ts [port]`.
 * Prints the port and how commands are isolated.
 */
import {
  ActionPool,
  CgroupDriver,
  CommandActions,
  CpuManager,
  cgroupDriverLacks,
  describeHost,
  ProcessDriver,
  serveActions,
} from "@treadle/actions";
import { systemClock } from "@treadle/transport";

const driver = cgroupDriverLacks() === undefined ? new CgroupDriver() : new ProcessDriver();
const pool = new ActionPool({
  managers: [new CpuManager({ nodes: [describeHost()], overcommit: 2 })],
  clock: systemClock,
});
const actions = new CommandActions(pool, driver);
const server = await serveActions(actions, { address: `127.0.0.1:${process.argv[2] ?? 0}` });
console.log(JSON.stringify({ port: server.port, isolation: driver.isolation }));

for (const signal of ["SIGINT", "SIGTERM"] as const)
  process.once(signal, async () => {
    await server.close();
    await actions.close();
    process.exit(0);
  });
