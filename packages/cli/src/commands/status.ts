import { RunLibrary } from "@treadle/dashboard";
import type { RunNow } from "@treadle/dashboard/view";
import { Command } from "commander";
import { renderLocalStatus, renderStatus } from "../view/status.ts";
import { jsonText } from "../view/text.ts";
import { readCluster } from "./cluster-status.ts";
import { type NatsFlags, withControlPlane, withNatsFlags } from "./control-plane.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

export function statusCommand(): Command {
  return withNatsFlags(new Command("status"), { needed: false })
    .description(
      "shows what runs: workers, queues, and which component waits for which; at a NATS server also nodes and devices",
    )
    .option("--runs <folder>", "where runs keep their folders; of use without a server")
    .option("--json", "prints one object")
    .action(async ({ nats, runs, json, ...flags }: Flags) => {
      const print = (found: unknown, text: string): unknown =>
        process.stdout.write(json ? `${jsonText(found)}\n` : text);
      if (nats !== undefined)
        return withControlPlane({ ...flags, nats }, async (plane) => {
          const found = await readCluster(plane);
          print(found, renderStatus(found));
        });
      const root = runs ?? defaultRunsRoot(findProjectRoot());
      const found = await readFolder(root);
      print(found, renderLocalStatus(root, found));
    });
}

type Flags = Partial<NatsFlags> & { readonly runs?: string; readonly json?: boolean };

/** Runs under way, and the newest where there is none. */
async function readFolder(root: string): Promise<RunNow[]> {
  const library = new RunLibrary(root);
  const rows = await library.list();
  const running = rows.filter(({ phase }) => phase === "running");
  const shown = await Promise.all(
    (running.length > 0 ? running : rows.slice(0, 1)).map(async ({ runId }) => (await library.get(runId))?.now),
  );
  return shown.filter((run) => run !== undefined);
}
