/** How commands find the control plane, and what runs there. */
import { AgentNameOfHost, type ControlPlane, type Member, NatsConfig, TreadleError } from "@treadle/contracts";
import { validateConfig } from "@treadle/runtime/runner";
import { openNatsControlPlane } from "@treadle/transport";
import { type Command, Option } from "commander";
import type { z } from "zod";
import { checkNodeKey, clusterValues } from "../cluster-folder.ts";
import { trustedRuns } from "./cluster-status.ts";
import { clusterOption } from "./settings.ts";

/** Those that are given. */
export const given = (values: Readonly<Record<string, unknown>>): Record<string, unknown> | undefined => {
  const entries = Object.entries(values).filter(([, value]) => value !== undefined);
  return entries.length === 0 ? undefined : Object.fromEntries(entries);
};

/**
 * The flags by which any command finds the control plane; `needed: false` where it does without one, too. `node`: the
 * command is a node's, and `--name` is which.
 */
export function withNatsFlags(command: Command, { needed = true, node = false } = {}): Command {
  return command
    .addOption(clusterOption())
    .addOption(
      new Option("--nats <address>", "NATS server, as nats://host:4222; several of one cluster with commas").env(
        "TREADLE_NATS_URL",
      ),
    )
    .option("--subject-prefix <name>", "prefix of NATS subjects; equal for the runs and nodes of one project")
    .option("--credentials <file>", "credentials or key of NATS; or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD")
    .option("--trust <file>", "public keys of the runners and nodes that are trusted; required beyond this machine")
    .option("--key <file>", "this process's own key, if the credentials do not hold it")
    .option("--nats-ca <file>", "authority of the NATS server's certificate")
    .option("--nats-cert <file>", "certificate for the NATS server")
    .option("--nats-key <file>", "its key")
    .option("--replicas <count>", "NATS servers that keep what must survive: 3 in a cluster of three")
    .hook("preAction", async (_, used) => {
      const flags = used.opts<Partial<NatsFlags> & { name?: string }>();
      if (flags.cluster !== undefined) {
        const name = AgentNameOfHost.safeParse(flags.name).data ?? flags.name;
        const sender = node ? ({ role: "node", name } as const) : ({ role: "runner" } as const);
        const { url, credentialsFile, trustFile, subjectPrefix, replicas, tls } = await clusterValues(
          flags.cluster,
          sender,
        );
        const values = {
          nats: [url].flat().join(","),
          credentials: credentialsFile,
          trust: trustFile,
          subjectPrefix,
          replicas: String(replicas),
          natsCa: tls?.ca,
        };
        if (node && flags.credentials === undefined) await checkNodeKey(flags.cluster, name);
        const known = used.opts<Record<string, unknown>>();
        for (const [name, value] of Object.entries(values)) {
          if (known[name] === undefined) used.setOptionValue(name, value);
        }
      } else if (needed && flags.nats === undefined) {
        throw new TreadleError(
          "config.invalid",
          `'treadle ${used.parent?.parent ? `${used.parent.name()} ` : ""}${used.name()}' asks a NATS server; say where with --cluster <folder> or --nats <address> (TREADLE_CLUSTER, TREADLE_NATS_URL)`,
        );
      }
    });
}

export type NatsFlags = {
  readonly nats: string;
  readonly cluster?: string;
  readonly subjectPrefix?: string;
  readonly credentials?: string;
  readonly trust?: string;
  readonly key?: string;
  readonly natsCa?: string;
  readonly natsCert?: string;
  readonly natsKey?: string;
  readonly replicas?: string;
};

/** As `NatsConfig` reads them. */
export const natsValues = (flags: NatsFlags): z.input<typeof NatsConfig> => ({
  url: flags.nats.split(","),
  ...given({
    subjectPrefix: flags.subjectPrefix,
    credentialsFile: flags.credentials,
    trustFile: flags.trust,
    keyFile: flags.key,
    replicas: flags.replicas === undefined ? undefined : Number(flags.replicas),
    tls: given({ ca: flags.natsCa, cert: flags.natsCert, key: flags.natsKey }),
  }),
});

/** Connects, does something, and disconnects. */
export async function withControlPlane<T>(flags: NatsFlags, act: (plane: ControlPlane) => Promise<T>): Promise<T> {
  const nats = validateConfig(NatsConfig, natsValues(flags));
  const plane = await openNatsControlPlane({ nats, name: "treadle command" });
  try {
    return await act(plane);
  } finally {
    await plane.close();
  }
}

/** The run of that id, or the only one. */
export function chooseMember(plane: ControlPlane, runId: string | undefined): Member {
  const runs = trustedRuns(plane);
  const chosen = runId === undefined && runs.length === 1 ? runs[0] : runs.find(({ name }) => name === runId);
  if (chosen) return chosen;
  const known = runs.map(({ name }) => `'${name}'`).join(", ") || "none";
  throw new TreadleError(
    "run.not-found",
    runId === undefined
      ? `'${runs.length}' runs are under way there, so say which: ${known}`
      : `run '${runId}' is not under way there; these are: ${known}`,
  );
}
