import { resolve } from "node:path";
import {
  AgentNameOfHost,
  LinksConfig,
  longestWaitMs,
  MetricsConfig,
  NatsConfig,
  OtlpConfig,
  WorkerPermissions,
} from "@treadle/contracts";
import { nameTaken, openNode, validateConfig } from "@treadle/runtime/runner";
import { Command } from "commander";
import { z } from "zod";
import { printClockLine } from "../view/clock-line.ts";
import { given, type NatsFlags, natsValues, withNatsFlags } from "./control-plane.ts";
import { hearSignals } from "./default-signals.ts";
import { aborted } from "./interruptible.ts";
import { findProjectRoot } from "./project.ts";
import { repeated } from "./settings.ts";

const Flags = z.strictObject({
  nats: NatsConfig,
  name: AgentNameOfHost.optional(),
  links: LinksConfig,
  permissions: WorkerPermissions,
  labels: z.record(z.string(), z.string()),
  devices: z.record(
    z.string().regex(/^[a-z][a-z0-9-]*$/, "must be lower case"),
    z.coerce.number().int().min(1).max(1024),
  ),
  metrics: MetricsConfig.optional(),
  otlp: OtlpConfig.optional(),
  limitSeconds: z.coerce
    .number()
    .positive()
    .max(longestWaitMs / 1000),
  drainSeconds: z.coerce
    .number()
    .nonnegative()
    .max(longestWaitMs / 1000),
  spareWorkers: z.coerce.number().int().nonnegative().max(64),
});

type RawFlags = NatsFlags & {
  readonly name?: string;
  readonly bind?: string;
  readonly advertise?: string;
  readonly linkCa?: string;
  readonly linkCert?: string;
  readonly linkKey?: string;
  readonly allowInterpreter: readonly string[];
  readonly allowFlag: readonly string[];
  readonly allowProgram: readonly string[];
  readonly allowModels: readonly string[];
  readonly allowEnv: readonly string[];
  readonly labels: Readonly<Record<string, string>>;
  readonly devices: Readonly<Record<string, string>>;
  readonly metrics?: string;
  readonly metricsCert?: string;
  readonly metricsKey?: string;
  readonly metricsCa?: string;
  readonly otlp?: string;
  readonly limit: string;
  readonly drain: string;
  readonly spares: string;
  readonly project?: string;
};

type PermissionFlags = Pick<RawFlags, "allowInterpreter" | "allowFlag" | "allowProgram" | "allowModels" | "allowEnv">;

/** What the agent allows runners: what its flags name, and nothing besides. */
export const permissionsOf = (raw: PermissionFlags): WorkerPermissions => ({
  interpreters: [...raw.allowInterpreter],
  flags: [...raw.allowFlag],
  programs: [...raw.allowProgram],
  models: raw.allowModels.map((folder) => resolve(folder)),
  env: [...raw.allowEnv],
});

/** `a=1,b=2`, and again. */
const collectPairs = (value: string, previous: Readonly<Record<string, string>>): Record<string, string> => {
  const pairs = value.split(",").map((pair) => {
    const at = pair.indexOf("=");
    return at < 1 ? [pair, "1"] : [pair.slice(0, at), pair.slice(at + 1)];
  });
  return { ...previous, ...Object.fromEntries(pairs) };
};

export function nodeCommand(): Command {
  return withNatsFlags(new Command("node"), { node: true })
    .description("offers this machine to runs that use the same NATS server, until SIGTERM")
    .option(
      "--name <name>",
      "how runs call this node, each '.' of it as '-' (default: the machine's name, made unique)",
    )
    .option("--bind <address>", "where its workers listen for other nodes (default: 127.0.0.1)")
    .option("--advertise <address>", "where other nodes dial them, if that is another")
    .option("--link-ca <file>", "authority of every machine's certificate: links are encrypted")
    .option("--link-cert <file>", "this machine's certificate")
    .option("--link-key <file>", "its key")
    .option(
      "--allow-interpreter <path>",
      "a program that runs may choose for Treadle's scripts here, besides this Node and the project's Pythons",
      repeated,
      [],
    )
    .option(
      "--allow-flag <flag>",
      "a flag that runs may give to an interpreter, as --allow-flag=--expose-gc",
      repeated,
      [],
    )
    .option(
      "--allow-program <path>",
      "a program that workers' configurations may name here, with arguments of theirs; /bin/sh: tools without isolation",
      repeated,
      [],
    )
    .option(
      "--allow-models <folder>",
      "below it lie models that workers' configurations may name here, besides those below the project",
      repeated,
      [],
    )
    .option(
      "--allow-env <name>",
      "a variable that runs may set for workers here and what these start, or have read as a server's key",
      repeated,
      [],
    )
    .option("--labels <k=v>", "labels by which runs choose nodes", collectPairs, {})
    .option("--devices <kind=count>", "devices of its own kind, as robot=2", collectPairs, {})
    .option("--metrics <address>", "serves metrics for Prometheus: 9464 on loopback, 0.0.0.0:9464 for others")
    .option("--metrics-cert <file>", "certificate by which metrics are served over TLS")
    .option("--metrics-key <file>", "its key")
    .option("--metrics-ca <file>", "authority of those who may read them")
    .option("--otlp <endpoint>", "sends spans to an OpenTelemetry collector, as http://127.0.0.1:4318")
    .option("--limit <seconds>", "ends its workers when the NATS server is away for longer", "60")
    .option("--drain <seconds>", "at SIGTERM, how long its runs have to finish a step and move on", "20")
    .option("--spares <number>", "processes that wait to replace workers that die, while a run is here", "2")
    .option("--project <folder>", "only modules below it are run (default: the project here)")
    .action(async (raw: RawFlags) => {
      const { limitSeconds, drainSeconds, ...offer } = validateConfig(Flags, {
        nats: natsValues(raw),
        ...given({ name: raw.name }),
        links: {
          ...given({
            bind: raw.bind,
            advertise: raw.advertise,
            tls: given({ ca: raw.linkCa, cert: raw.linkCert, key: raw.linkKey }),
          }),
        },
        permissions: permissionsOf(raw),
        labels: raw.labels,
        devices: raw.devices,
        ...given({
          metrics: given({
            address: raw.metrics,
            tls: given({ cert: raw.metricsCert, key: raw.metricsKey, ca: raw.metricsCa }),
          }),
          otlp: given({ endpoint: raw.otlp }),
        }),
        limitSeconds: raw.limit,
        drainSeconds: raw.drain,
        spareWorkers: raw.spares,
      });
      const node = await openNode({
        ...offer,
        projectRoot: raw.project ?? findProjectRoot(),
        cutOffMs: limitSeconds * 1000,
        onNotice: printClockLine,
      });
      printClockLine(
        `node '${node.name}' is ready for runs at ${[offer.nats.url].flat().join(", ")} (incarnation ${node.incarnation})`,
      );
      if (offer.nats.trustFile === undefined) {
        printClockLine(
          "no keys are given: every user of this machine can start modules of the project; see 'treadle cluster init'",
        );
      }
      const leave = new AbortController();
      using _ = hearSignals(() => {
        if (leave.signal.aborted) process.exit(130); // whatever still runs here ends with this process
        leave.abort();
      });
      await Promise.race([aborted(leave.signal), node.replaced]);
      if (leave.signal.aborted) {
        printClockLine("drains: its runs move on between two steps");
        const isEmpty = await node.drain(drainSeconds * 1000);
        printClockLine(isEmpty ? "leaves" : "leaves: what its workers were doing is done again elsewhere");
        await node.close("it was asked to leave");
        printClockLine("has left");
        return;
      }
      await node.close("it was replaced");
      throw nameTaken(node.name);
    });
}
