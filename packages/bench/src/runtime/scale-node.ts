/** A node agent in a process of its own, for the measurement of scale; ends with whoever started it. */
import { LinksConfig, NatsConfig, WorkerPermissions } from "@treadle/contracts";
import { openNode } from "@treadle/runtime/runner";
import { benchRoot } from "./bench-cluster.ts";

const [name, url] = process.argv.slice(2) as [string, string];
const join = () =>
  openNode({
    name,
    nats: NatsConfig.parse({ url: url.split(","), replicas: 3 }),
    projectRoot: benchRoot,
    links: LinksConfig.parse({}),
    permissions: WorkerPermissions.parse({}),
    cutOffMs: 60_000,
    onNotice: () => {},
  });

/** Servers that have just met may elect a leader for longer than one attempt waits. */
async function joinInTime(deadlineMs: number): Promise<Awaited<ReturnType<typeof openNode>>> {
  for (;;) {
    try {
      return await join();
    } catch (error) {
      if (performance.now() > deadlineMs) throw error;
    }
  }
}

const node = await joinInTime(performance.now() + 60_000);
process.stdout.write("ready\n");
process.stdin.on("end", () => void node.close("the measurement is over").then(() => process.exit(0))).resume();
