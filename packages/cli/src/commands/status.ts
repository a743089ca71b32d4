import { Command } from "commander";
import { renderStatus } from "../view/status.ts";
import { readCluster } from "./cluster-status.ts";
import { type NatsFlags, withControlPlane, withNatsFlags } from "./control-plane.ts";

export function statusCommand(): Command {
  return withNatsFlags(new Command("status"))
    .description("shows nodes, devices and runs at a NATS server: workers, queues, and who waits for whom")
    .option("--json", "prints one object")
    .action((flags: NatsFlags & { readonly json?: boolean }) =>
      withControlPlane(flags, async (plane) => {
        const found = await readCluster(plane);
        process.stdout.write(flags.json ? `${JSON.stringify(found)}\n` : renderStatus(found));
      }),
    );
}
