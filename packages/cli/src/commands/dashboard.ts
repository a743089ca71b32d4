/** `treadle dashboard`: the live page of the runs of this project. */
import { NatsConfig } from "@treadle/contracts";
import { validateConfig } from "@treadle/runtime/runner";
import { openNatsControlPlane } from "@treadle/transport";
import { Command, Option } from "commander";
import { readCluster, remoteRuns } from "./cluster-status.ts";
import { type NatsFlags, natsValues, withNatsFlags } from "./control-plane.ts";
import { readFlagFile } from "./flag-file.ts";
import { wholeNumber } from "./number-flags.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

const usualPort = 4800;

type Flags = {
  readonly runs?: string;
  readonly port?: string;
  readonly host: string;
  readonly actions?: string;
  readonly actionsCa?: string;
  readonly actionsTokenFile?: string;
  readonly withParent?: boolean;
} & Partial<NatsFlags>;

export function dashboardCommand(): Command {
  return withNatsFlags(new Command("dashboard"), { needed: false })
    .description("serves a page of all runs and of what each does as it happens, until Ctrl-C")
    .option("--runs <folder>", "where runs keep their folders (default: runs/ of the project)")
    .option("--port <number>", `0 is a free one (default: ${usualPort}, or a free one where that is taken)`)
    .option(
      "--host <address>",
      "address to listen on; anyone with the printed address and its token may look",
      "127.0.0.1",
    )
    .option("--actions <address>", "of an action service, as 127.0.0.1:50061: also shows what it does")
    .option("--actions-ca <file>", "authority of the service's certificate: the connection is encrypted")
    .option("--actions-token-file <file>", "with the token of a tenant, whose actions are shown")
    .addOption(new Option("--with-parent", "ends when its standard input does").hideHelp())
    .addHelpText("after", "\nTREADLE_DASHBOARD_TOKEN: the token that a browser must give, instead of a random one")
    .action(
      async ({ runs, port, host, withParent, actions, actionsCa, actionsTokenFile, nats, ...natsFlags }: Flags) => {
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
        const service = actions === undefined ? undefined : await actionService(actions, actionsCa, actionsTokenFile);
        const open = (at: number) =>
          serveDashboard({
            ...{ runsRoot, host, port: at, token },
            ...(plane ? { cluster: () => readCluster(plane), remote: remoteRuns(plane) } : {}),
            ...(service ? { actions: () => service.read() } : {}),
          });
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
        service?.close();
        await plane?.close();
      },
    );
}

async function actionService(address: string, ca: string | undefined, tokenFile: string | undefined) {
  const { StatisticsClient } = await import("@treadle/actions/serve");
  return new StatisticsClient({
    address,
    authority: ca === undefined ? undefined : readFlagFile("actions-ca", ca),
    token: tokenFile === undefined ? undefined : readFlagFile("actions-token-file", tokenFile).toString().trim(),
  });
}
