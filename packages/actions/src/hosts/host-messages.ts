/** What an action service and a host of sandboxes say to each other, as @grpc/proto-loader decodes it. */
import { z } from "zod";
import { leastDiskBytes, mostDiskBytes } from "../drivers/disk-image.ts";
import { commandSignals, type ExecStatus, type SandboxNetwork } from "../drivers/sandbox.ts";
import { longestTimerMs } from "../formulation/action-spec.ts";
import { maxMessageBytes, mostProcesses } from "../grpc/messages.ts";
import { CpuNode } from "../managers/cpu.ts";
import { AllowList, mostEntries } from "../network/allow-list.ts";

/** Raised with every change that the other side would take for something else. */
export const hostProtocol = 2;
/** between two signs of life of a host, each with what its sandboxes use */
export const beatMs = 500;

/** in the metadata of a failure: why its sandbox is over, percent-encoded */
export const lossKey = "treadle-loss";

/** Of a host, both ways: a service's own, and what names where it goes. */
export const maxHostMessageBytes = maxMessageBytes + 2 ** 20;

const id = z.string().min(1).max(100);
/** in words, for people */
const said = z.string().transform((value) => value.slice(0, 2000));
const bytes = z.instanceof(Uint8Array);
/** an optional field that is absent */
const unset = <Schema extends z.ZodType>(schema: Schema) => schema.nullish().transform((value) => value ?? undefined);
const text = z.string().transform((value) => value || undefined);

export const AttachRequest = z.object({ protocol: z.number(), service: id, host: z.string().max(100) });

export const AttachEvent = z.discriminatedUnion("event", [
  z.object({
    event: z.literal("attached"),
    attached: z
      .object({
        attachment: id,
        driver: said,
        isolation: said,
        numa: z.array(z.object({ cores: z.array(z.number()) }).transform(({ cores }) => cores)),
        memory_bytes: z.number(),
        disk_lacks: said.transform((value) => value || undefined),
      })
      .transform(({ memory_bytes: memoryBytes, disk_lacks: diskLacks, ...rest }) => ({
        ...rest,
        memoryBytes,
        diskLacks,
      })),
  }),
  z.object({
    event: z.literal("beat"),
    beat: z
      .object({
        available_bytes: z.number().nonnegative(),
        used_bytes: z.record(z.string(), z.number().nonnegative()).default({}),
        losses: z.record(z.string(), said).default({}),
      })
      .transform((beat) => ({
        availableBytes: beat.available_bytes,
        usedBytes: new Map(Object.entries(beat.used_bytes)),
        losses: new Map(Object.entries(beat.losses)),
      })),
  }),
]);
export type HostBeat = Extract<z.infer<typeof AttachEvent>, { event: "beat" }>["beat"];

/** What a host has, checked as a node of a CPU cluster is. */
export const HostShape = CpuNode.omit({ id: true });
export type HostShape = z.infer<typeof HostShape>;

/** `host` without a list. */
const SandboxNetworkMessage = z
  .object({
    proxy: z
      .array(z.object({ entries: z.array(z.string().max(300)).max(mostEntries) }))
      .max(8)
      .default([]),
  })
  .transform(
    ({ proxy }): SandboxNetwork => (proxy.length === 0 ? "host" : proxy.map(({ entries }) => new AllowList(entries))),
  );
export const networkMessage = (network: SandboxNetwork | undefined): object | undefined =>
  network && { proxy: network === "host" ? [] : network.map(({ entries }) => ({ entries })) };

export const OpenRequest = z
  .object({
    attachment: id,
    sandbox: id,
    memory_bytes: unset(z.number().positive().transform(Math.ceil)),
    max_processes: unset(z.int().positive().max(mostProcesses)),
    network: unset(SandboxNetworkMessage),
    disk_bytes: unset(z.number().min(leastDiskBytes).max(mostDiskBytes)),
    image: text,
    user: text,
    working_folder: text,
    snapshot: text,
  })
  .transform(
    ({
      memory_bytes: memoryBytes,
      max_processes: maxProcesses,
      disk_bytes: diskBytes,
      working_folder: workingFolder,
      ...rest
    }) => ({ ...rest, memoryBytes, maxProcesses, diskBytes, workingFolder }),
  );

export const OpenReply = z
  .object({ state_folder: z.string().min(1) })
  .transform(({ state_folder: stateFolder }) => ({ stateFolder }));

const ExecStart = z
  .object({
    attachment: id,
    sandbox: id,
    exec: id,
    command: z
      .array(z.string())
      .min(1)
      .transform((words) => words as [string, ...string[]]),
    environment: z.record(z.string(), z.string()).default({}),
    cores: z.array(z.int()).default([]),
    timeout_ms: unset(z.number().nonnegative().max(longestTimerMs)),
    grace_ms: unset(z.number().nonnegative().max(longestTimerMs)),
    max_output_bytes: unset(z.number().nonnegative()),
  })
  .transform(({ timeout_ms: timeoutMs, grace_ms: graceMs, max_output_bytes: maxOutputBytes, ...rest }) => ({
    ...rest,
    timeoutMs,
    graceMs,
    maxOutputBytes,
  }));

export const ExecMessage = z.discriminatedUnion("message", [
  z.object({ message: z.literal("start"), start: ExecStart }),
  z.object({ message: z.literal("input"), input: bytes }),
]);

const statuses = ["exited", "timeout", "output-limit", "out-of-memory", "cancelled", "killed"] as const;
statuses satisfies readonly ExecStatus[];

export const ExecEvent = z.discriminatedUnion("event", [
  z.object({ event: z.literal("began") }),
  z.object({ event: z.literal("output"), output: z.object({ stdout: bytes, stderr: bytes }) }),
  z.object({
    event: z.literal("ended"),
    ended: z
      .object({
        status: z.enum(statuses),
        exit_code: z.number().nullish(),
        seconds: z.number().nonnegative(),
        loss: said.transform((value) => value || undefined),
      })
      .transform(({ exit_code: exitCode, ...rest }) => ({ ...rest, exitCode: exitCode ?? null })),
  }),
]);

export const SignalRequest = z.object({
  attachment: id,
  exec: id,
  signal: z.enum(["", ...commandSignals]),
});
export const WriteFileRequest = z.object({ attachment: id, sandbox: id, path: z.string(), data: bytes });
export const ReadFileRequest = z
  .object({ attachment: id, sandbox: id, path: z.string(), max_bytes: unset(z.number().nonnegative()) })
  .transform(({ max_bytes: maxBytes, ...rest }) => ({
    ...rest,
    maxBytes: Math.min(maxBytes ?? maxMessageBytes, maxMessageBytes),
  }));
export const ReadFileReply = z.object({ data: bytes });
export const TakeSnapshotRequest = z
  .object({ attachment: id, sandbox: id, snapshot: id, max_bytes: z.number() })
  .transform(({ max_bytes: maxBytes, ...rest }) => ({ ...rest, maxBytes }));
export const TakeSnapshotReply = z.object({ bytes: z.number().nonnegative() });
export const DropSnapshotRequest = z.object({ attachment: id, snapshot: id });
export const CloseRequest = z.object({ attachment: id, sandbox: id });
export const Done = z.object({});
