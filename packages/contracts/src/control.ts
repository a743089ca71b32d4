/** What runners, node agents and the command line say over the control plane: the bodies and answers of protocol.ts. */
import { z } from "zod";
import { EnvironmentVariables, Interpreter, longestWaitMs } from "./config.ts";
import { ErrorRecordShape } from "./events.ts";
import { WorkerBoot } from "./messages.ts";
import { ModulePath, NodeName, RunName, SegmentPrefix, WorkerName } from "./names.ts";
import type { CommandSender, MemberKind } from "./ports.ts";

const DeviceOffer = z.object({
  kind: z.string().min(1).max(64),
  index: z.int().nonnegative().max(65_535),
  memoryBytes: z.number().nonnegative(),
  /** as the vendor calls it */
  name: z.string().max(100).optional(),
  /** the NUMA node that it is attached to */
  numa: z.int().nonnegative().optional(),
});

/** What a node agent says of itself. */
export const NodeInfo = z.object({
  cpus: z.int().positive().max(65_536),
  memoryBytes: z.number().positive(),
  /** where the machine says of them */
  numa: z
    .array(
      z.object({
        index: z.int().nonnegative(),
        cpus: z.int().nonnegative(),
        memoryBytes: z.number().nonnegative(),
      }),
    )
    .max(1024)
    .optional(),
  /** accelerators and custom devices; CPU devices are slots that a run makes */
  devices: z
    .array(DeviceOffer)
    .max(65_536)
    .refine((all) => new Set(all.map(({ kind, index }) => `${kind}:${index}`)).size === all.length, "two have one name")
    .refine((all) => all.every(({ kind }) => kind !== "cpu"), "'cpu' are the slots that a run makes"),
  labels: z.record(z.string(), z.string()),
  platform: z.string(),
  /** it was asked to leave, and does once its runs have taken their workers away between two steps */
  isDraining: z.boolean().optional(),
  /** the worker processes there, by run */
  workers: z.record(z.string(), z.array(z.string())),
  /** the run that has the node for itself */
  exclusiveTo: RunName.optional(),
});
export type NodeInfo = z.infer<typeof NodeInfo>;

/** What a runner says of its run. */
export const RunInfo = z.object({
  runId: RunName,
  host: z.string(),
  pid: z.int(),
  startedAt: z.string(),
});
export type RunInfo = z.infer<typeof RunInfo>;

/** Which runner of which run a command belongs to: an agent serves one at a time, and the newer one wins. */
const RunSession = { run: RunName, session: z.int().nonnegative() };
const OneProcess = { ...RunSession, worker: WorkerName, incarnation: z.int().nonnegative() };

/** Whether the code below the node's project root is the runner's, and runs on the same. */
export const CheckReply = z.object({
  codeHash: z.string(),
  versions: z.object({
    node: z.string().max(100),
    treadle: z.string().max(100),
    /** what workers load of Treadle: its sources, or what was built of them */
    form: z.enum(["sources", "compiled"]),
  }),
});
/** What the files of code there hold: those after a path, in the order of paths, as many as a message takes. */
export const FilesCommand = z.object({ after: z.string() });
export const FilesReply = z.object({ files: z.array(z.tuple([z.string(), z.string()])), isLast: z.boolean() });
export type FilesReply = z.infer<typeof FilesReply>;

export const SpawnCommand = z.object({
  ...RunSession,
  /** without what only the node knows: itself, its folders, its addresses */
  boot: WorkerBoot.omit({ node: true, listenPath: true, segmentPrefix: true, remote: true }),
  /** begins the names of shared memory */
  segmentPrefix: SegmentPrefix,
  /** module below the project's root, with forward slashes */
  modulePath: ModulePath,
  /** the runner's root as a file URL */
  projectRoot: z.string(),
  codeHash: z.string(),
  /** of what is here and in `interpreter`, the node allows what its own configuration names */
  env: EnvironmentVariables,
  memoryLimitMiB: z.number().positive().optional(),
  /** only where no other run has workers, and no other run while this one has */
  exclusive: z.boolean().optional(),
  /** default: the Node that the node agent runs on */
  interpreter: Interpreter.optional(),
});
export type SpawnCommand = z.infer<typeof SpawnCommand>;
export const SpawnReply = z.object({
  pid: z.int().optional(),
  /** where the node keeps large items for processes of other nodes */
  depot: z.array(z.string()).optional(),
});
export type SpawnReply = z.infer<typeof SpawnReply>;

export const EndCommand = z.object({ ...OneProcess, verdict: ErrorRecordShape.optional() });
export const StopCommand = z.object({ ...OneProcess, graceMs: z.number().nonnegative().max(longestWaitMs) });
/** Whether it was there to be ended. Where it was not, its end has been reported, or nobody is left there who could. */
export const EndReply = z.object({ isHere: z.boolean() });
export type EndReply = z.infer<typeof EndReply>;
/** Ends every process of the run there. */
export const ReleaseCommand = z.object(RunSession);

export const ExitReport = z.object({
  worker: WorkerName,
  incarnation: z.int().nonnegative(),
  pid: z.int().optional(),
  code: z.int().nullable(),
  signal: z.string().nullable(),
  /** what the process itself, or its watcher, said of the reason */
  failure: ErrorRecordShape.optional(),
  /** why its node has ended it of its own accord */
  endedByNode: z.string().max(500).optional(),
  logTail: z.array(z.string()),
});
export type ExitReport = z.infer<typeof ExitReport>;
export const ExitedCommand = z.object({ node: NodeName, report: ExitReport });

/** Characters of a sampled stack. */
export const maxStackLength = 2000;

/** That whoever published an event has the run's token, and which of its events it is. */
export const EventProof = z.object({
  stream: z.uuid(),
  sequence: z.int().positive(),
  mac: z.string().regex(/^[0-9a-f]{64}$/),
});
export type EventProof = z.infer<typeof EventProof>;

/** Of every worker of a run on a node, once a second. */
export const HeartbeatsEvent = z.object({
  node: NodeName,
  session: z.int(),
  proof: EventProof,
  beats: z.array(
    z.object({
      worker: WorkerName,
      incarnation: z.int(),
      /** how long the main thread has computed without a pause */
      busyMs: z.number(),
      rssBytes: z.number(),
      /** what it computes, innermost function first, once that takes longer than `supervision.stallMs` */
      stack: z.string().max(maxStackLength).optional(),
    }),
  ),
});
export type HeartbeatsEvent = z.infer<typeof HeartbeatsEvent>;

export const LogEvent = z.object({
  node: NodeName,
  proof: EventProof,
  lines: z.array(z.object({ worker: WorkerName, level: z.string(), line: z.string() })),
});
export type LogEvent = z.infer<typeof LogEvent>;

/** What a runner answers when it is asked how it goes. */
export const RunStatus = z.object({
  step: z.int().nonnegative().optional(),
  restarts: z.int().nonnegative(),
  workers: z.array(
    z.object({
      worker: z.string(),
      node: z.string(),
      devices: z.array(z.string()),
      pid: z.int().optional(),
      isReady: z.boolean(),
      /** how its link to the runner goes */
      route: z.enum(["direct", "nats"]).optional(),
    }),
  ),
  channels: z.array(z.object({ channel: z.string(), depth: z.number() })),
  /** who waits, and for whom in turn */
  waits: z.array(z.object({ who: z.string(), on: z.string() })),
});
export type RunStatus = z.infer<typeof RunStatus>;

/** Files of a run's folder that its runner shows to other machines; secrets of the configuration are left out. */
export const shownRunFiles = [
  "config.json",
  "plan.json",
  "prediction.json",
  "graph.json",
  "metrics.jsonl",
  "events.jsonl",
  "trace.jsonl",
] as const;

/** Asks for what comes after what is known of a file. */
export const ReadRunFile = z.object({
  file: z.enum(shownRunFiles),
  fromByte: z.int().nonnegative(),
  /** of the answer before; empty at first */
  version: z.string().max(100),
  /** a name that the reader alone has, and keeps; the runner waits at its end until it has read all */
  reader: z.string().min(1).max(100),
});
export type ReadRunFile = z.infer<typeof ReadRunFile>;

/** A part of a file, from its beginning where it is not the one that was known. Empty where there is no more. */
export const RunFilePart = z.object({
  version: z.string().max(100),
  fromByte: z.int().nonnegative(),
  sizeBytes: z.int().nonnegative(),
  data: z.base64(),
});
export type RunFilePart = z.infer<typeof RunFilePart>;

/** What is kept of a run when its runner has left. */
export const RunRecord = RunInfo.extend({
  state: z.enum(["running", "finished", "stopped", "failed"]),
  step: z.int().nonnegative(),
  endedAt: z.string().optional(),
  /** the first failure */
  failure: z.string().optional(),
});
export type RunRecord = z.infer<typeof RunRecord>;

/** Whose key a command must be signed by, where keys are given. */
export function roleToCommand(kind: MemberKind, method: string): CommandSender["role"] {
  return kind === "run" && method === "exited" ? "node" : "runner";
}
