/** `treadle actions`: the action-level resource layer as a service of its own. */
import { dirname, resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import {
  ActionHostConfig,
  ActionServiceConfig,
  openActionHost,
  openActionService,
  type ServiceStatistics,
  StatisticsClient,
} from "@treadle/actions/serve";
import { readConfigFile, validateConfig } from "@treadle/runtime/runner";
import { Command } from "commander";
import { z } from "zod";
import { actionLines, renderActionFrame } from "../view/action-frame.ts";
import { printClockLine } from "../view/clock-line.ts";
import { openLiveView } from "../view/live.ts";
import { readFlagFile } from "./flag-file.ts";
import { aborted, interruptible } from "./interruptible.ts";
import { profileActionCommand } from "./profile-action.ts";

export function actionsCommand(): Command {
  return new Command("actions")
    .description("the action service: tools and rewards of any framework, scheduled one by one on shared resources")
    .addCommand(serveCommand())
    .addCommand(hostCommand())
    .addCommand(topCommand())
    .addCommand(profileActionCommand());
}

type ListenFlags = { readonly listen?: string };

/** What a file says, or nothing, with the flag in place of its `listen`; and the folder that its files are relative to. */
async function configOf(
  file: string | undefined,
  { listen }: ListenFlags,
): Promise<{ values: unknown; folder: string }> {
  const values = file === undefined ? {} : await readConfigFile(file);
  const folder = file === undefined ? process.cwd() : dirname(resolve(file));
  return { values: listen === undefined || typeof values !== "object" ? values : { ...values, listen }, folder };
}

function serveCommand(): Command {
  return new Command("serve")
    .description("serves actions over gRPC until SIGTERM; actions that run then end first")
    .argument("[config.yaml]", "resources, drivers, tenants, limits, TLS; without it this machine's cores, on loopback")
    .option("--listen <address>", "host:port or unix:/path, in place of the file's")
    .action(async (file: string | undefined, flags: ListenFlags) => {
      const { values, folder } = await configOf(file, flags);
      const config = validateConfig(ActionServiceConfig, values);
      // Asked for from here on: a signal while it opens must not leave a sandbox driver behind.
      await interruptible(async ({ stop, kill }) => {
        const service = await openActionService(config, folder, printClockLine);
        const capacities = Object.entries(service.capacities).map(([name, units]) => `${units} ${name}`);
        printClockLine(`actions are served at ${service.address}, to an action at most ${capacities.join(", ")}`);
        if (service.warning !== undefined) printClockLine(service.warning);
        if (service.openAiUrl !== undefined) printClockLine(`OpenAI's API is served at ${service.openAiUrl}`);
        printClockLine(`driver '${service.driver}', isolation: ${service.isolation}`);
        await aborted(stop);
        printClockLine(`takes nothing new; waits ${config.drainSeconds} s at most for what is under way`);
        const left = await Promise.race([service.drain(config.drainSeconds * 1000), aborted(kill)]);
        if (left !== 0)
          printClockLine(left === undefined ? "was asked again: ends at once" : `cancels ${left} that have not ended`);
        await service.close();
        printClockLine("has ended; nothing is left");
      });
    });
}

function hostCommand(): Command {
  return new Command("host")
    .description("offers this machine's cores and sandboxes to an action service elsewhere, until SIGTERM")
    .argument("[config.yaml]", "drivers, cores, token, TLS; without it all cores, on loopback")
    .option("--listen <address>", "host:port or unix:/path, in place of the file's")
    .action(async (file: string | undefined, flags: ListenFlags) => {
      const { values, folder } = await configOf(file, flags);
      const config = validateConfig(ActionHostConfig, values);
      await interruptible(async ({ stop }) => {
        const host = await openActionHost(config, folder, printClockLine);
        printClockLine(`${host.numCores} cores are offered at ${host.address}`);
        if (host.warning !== undefined) printClockLine(host.warning);
        printClockLine(`driver '${host.driver}', isolation: ${host.isolation}`);
        await aborted(stop);
        await host.close();
        printClockLine("has ended; nothing is left");
      });
    });
}

const Looks = z.strictObject({
  intervalSeconds: z.coerce.number().min(0.1).max(3600),
  count: z.coerce.number().int().positive().optional(),
});

type TopFlags = {
  readonly interval: string;
  readonly count?: string;
  readonly ca?: string;
  readonly tokenFile?: string;
  readonly plain?: boolean;
  readonly json?: boolean;
};

function topCommand(): Command {
  return new Command("top")
    .description("shows what an action service does: completion times by kind, cores over time, the last decisions")
    .argument("[address]", "of the service, host:port or unix:/path", "127.0.0.1:50061")
    .option("--interval <seconds>", "between two looks", "1")
    .option("--count <number>", "looks, then ends")
    .option("--ca <file>", "authority of the service's certificate: the connection is encrypted")
    .option("--token-file <file>", "with the token of a tenant, whose actions are shown")
    .option("--plain", "plain lines instead of the live view")
    .option("--json", "prints one object a look")
    .action(async (address: string, flags: TopFlags) => {
      const { intervalSeconds, count = Number.POSITIVE_INFINITY } = validateConfig(Looks, {
        intervalSeconds: flags.interval,
        count: flags.count,
      });
      const client = new StatisticsClient({
        address,
        authority: flags.ca === undefined ? undefined : readFlagFile("ca", flags.ca),
        token:
          flags.tokenFile === undefined ? undefined : readFlagFile("token-file", flags.tokenFile).toString().trim(),
      });
      const ended = new AbortController();
      for (const signal of ["SIGTERM", "SIGINT"] as const) process.on(signal, () => ended.abort());
      let latest: ServiceStatistics | undefined;
      const { stdout } = process;
      const isLive = stdout.isTTY === true && !flags.plain && !flags.json && process.env.TERM !== "dumb";
      let live: ReturnType<typeof openLiveView> | undefined;
      try {
        for (let looks = 0; looks < count && !ended.signal.aborted; looks++) {
          const seen = await client.read();
          latest = seen;
          if (flags.json) stdout.write(`${JSON.stringify(seen)}\n`);
          else if (!isLive) stdout.write(`${actionLines(seen).join("\n")}\n`);
          else live ??= openLiveView(stdout, (frame) => renderActionFrame(address, latest ?? seen, frame));
          live?.update();
          if (looks + 1 < count)
            await delay(intervalSeconds * 1000, undefined, { signal: ended.signal }).catch(() => {});
        }
      } finally {
        live?.close();
        client.close();
      }
    });
}
