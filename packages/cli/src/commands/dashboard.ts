/** `treadle dashboard`: the live page of the runs of this project. */
import { NatsConfig } from "@treadle/contracts";
import { validateConfig } from "@treadle/runtime/runner";
import { openNatsControlPlane } from "@treadle/transport";
import { Command, Option } from "commander";
import { readCluster } from "./cluster-status.ts";
import { type NatsFlags, natsValues, withNatsFlags } from "./control-plane.ts";
import { wholeNumber } from "./number-flags.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

const usualPort = 4800;

type Flags = {
  readonly runs?: string;
  readonly port?: string;
  readonly host: string;
  readonly withParent?: boolean;
} & Partial<NatsFlags>;

export function dashboardCommand(): Command {
  return withNatsFlags(new Command("dashboard"), { needed: false })
    .description("serves a page of all runs and of what each does as it happens, until Ctrl-C")
    .option("--runs <folder>", "where runs keep their folders (default: runs/ of the project)")
    .option("--port <number>", `0 is a free one (default: ${usualPort}, or a free one where that is taken)`)
    .option(
      "--host <address>",
      "where it listens; whoever has the printed address, with its token, may look",
      "127.0.0.1",
    )
    .addOption(new Option("--with-parent", "ends when its standard input does").hideHelp())
    .addHelpText("after", "\nTREADLE_DASHBOARD_TOKEN: the token that a browser must give, instead of a random one")
    .action(async ({ runs, port, host, withParent, nats, ...natsFlags }: Flags) => {
      const { serveDashboard } = await import("@treadle/dashboard/serve");
      const runsRoot = runs ?? defaultRunsRoot(findProjectRoot());
      const token = process.env["TREADLE_DASHBOARD_TOKEN"] || undefined;
      const plane =
        nats === undefined
          ? undefined
          : await openNatsControlPlane({
              nats: validateConfig(NatsConfig, natsValues({ ...natsFlags, nats })),
              name: "treadle dashboard",
            });
      const open = (at: number) =>
        serveDashboard({ runsRoot, host, port: at, token, ...(plane ? { cluster: () => readCluster(plane) } : {}) });
      const chosen = port === undefined ? undefined : wholeNumber("--port", port, { most: 65_535 });
      const dashboard = await open(chosen ?? usualPort).catch((error) => {
        if (chosen !== undefined) throw error;
        return open(0);
      });
      process.stdout.write(`${dashboard.url}: open it in a browser; Ctrl-C ends it\n`);
      await new Promise<void>((resolve) => {
        process.once("SIGINT", () => resolve());
        process.once("SIGTERM", () => resolve());
        if (withParent) process.stdin.resume().once("close", () => resolve());
      });
      process.stdin.destroy();
      await dashboard.close();
      await plane?.close();
    });
}
