import { validateHeaderName, validateHeaderValue } from "node:http";
import { z } from "zod";
import { leastDiskBytes, mostDiskBytes } from "../drivers/disk-image.ts";
import { type CommandSignal, commandSignals } from "../drivers/sandbox.ts";
import { longestTimerMs } from "../formulation/action-spec.ts";
import { isForwarded } from "../network/forwarded-headers.ts";

/** Of one message, and of what is kept of an action's output. */
export const maxMessageBytes = 64 * 2 ** 20;
/** of one trajectory */
export const mostProcesses = 32_768;

/** What arrives over the wire, as @grpc/proto-loader decodes it (`oneofs`, `defaults`, numbers for longs). */
const amount = z
  .discriminatedUnion("amount", [
    z.object({ amount: z.literal("fixed"), fixed: z.number() }),
    z.object({ amount: z.literal("range"), range: z.object({ min: z.number(), max: z.number() }) }),
    z.object({ amount: z.literal("set"), set: z.object({ units: z.array(z.number()) }) }),
  ])
  .transform((a) =>
    a.amount === "fixed" ? a.fixed : a.amount === "range" ? { min: a.range.min, max: a.range.max } : a.set.units,
  );

const points = z.object({ points: z.array(z.object({ units: z.number(), value: z.number() })) });

const elasticity = z
  .discriminatedUnion("elasticity", [
    z.object({ elasticity: z.literal("amdahl"), amdahl: z.number() }),
    z.object({ elasticity: z.literal("power"), power: z.number() }),
    z.object({ elasticity: z.literal("efficiency"), efficiency: points }),
    z.object({ elasticity: z.literal("seconds"), seconds: points }),
  ])
  .transform((e) => {
    if (e.elasticity === "amdahl") return { type: "amdahl", serialShare: e.amdahl };
    if (e.elasticity === "power") return { type: "power", exponent: e.power };
    if (e.elasticity === "efficiency")
      return { type: "table", points: e.efficiency.points.map((p) => ({ units: p.units, efficiency: p.value })) };
    return { type: "seconds", points: e.seconds.points.map((p) => ({ units: p.units, seconds: p.value })) };
  });

const bytesOf = (all: Record<string, string>): number =>
  Object.entries(all).reduce((sum, [key, value]) => sum + Buffer.byteLength(key) + Buffer.byteLength(value), 0);

const idempotencyKey = z.string().max(200);
/** chosen by the client; empty where the server may choose */
const name = z.string().max(200);

/** of input or an archive in one message, and of input that a command has not read */
export const maxInputBytes = 2 ** 20;

/** of the variables of a trajectory, which are kept with it; Linux gives no program more in one */
const mostEnvironmentBytes = 128 * 2 ** 10;

/** of a request to a model service */
export const maxBodyBytes = maxMessageBytes / 2;
const methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
const mostHeaderBytes = 8 * 2 ** 10;

const isHeader = (name: string, value: string): boolean => {
  try {
    validateHeaderName(name);
    validateHeaderValue(name, value);
    return true;
  } catch {
    return false;
  }
};
const shown = (text: string): string => JSON.stringify(text).slice(1, -1).slice(0, 100);

const ServiceRequestFields = z.object({
  method: z
    .string()
    .transform((method) => method || "POST")
    .refine((method) => methods.includes(method), {
      error: ({ input }) => `'${shown(String(input))}' is not sent; sent are ${methods.join(", ")}`,
    }),
  path: z.string().refine((path) => /^\/[!-"$-~]*$/.test(path) && path.length <= 4096, {
    error: ({ input }) =>
      `'${shown(String(input))}' is no path of the service; give one that begins with '/', with its query, in printable ASCII`,
  }),
  headers: z.record(z.string(), z.string()).superRefine((headers, context) => {
    for (const [name, value] of Object.entries(headers)) {
      const issue = (message: string): void => context.addIssue({ code: "custom", path: [shown(name)], message });
      if (!isHeader(name, value))
        issue(`'${shown(value)}' is no value of a header of that name; give visible characters`);
      else if (!isForwarded(name))
        issue("is not passed to a service: it is of the connection, or names a client; leave it out");
    }
    if (bytesOf(headers) > mostHeaderBytes)
      context.addIssue({
        code: "custom",
        message: `have ${bytesOf(headers)} bytes, at most ${mostHeaderBytes} are passed; send less`,
      });
  }),
  body: z.instanceof(Uint8Array).refine((body) => body.length <= maxBodyBytes, {
    error: ({ input }) => `has ${(input as Uint8Array).length} bytes, at most ${maxBodyBytes} are passed; send less`,
  }),
});
export type ServiceRequest = z.infer<typeof ServiceRequestFields>;

const SubmitFields = z.object({
  trajectory: name,
  tenant: z.string(),
  service: z.string(),
  request: ServiceRequestFields.nullish(),
  kind: z.string(),
  cost: z.record(z.string(), amount),
  key: z.string(),
  elasticity: elasticity.nullish(),
  duration_seconds: z.number().optional(),
  priority: z.number(),
  deadline_ms: z.number().nonnegative(),
  retries: z.number(),
  command: z.array(z.string()),
  environment: z.record(z.string(), z.string()),
  stdin: z.instanceof(Uint8Array),
  timeout_ms: z.number().nonnegative().max(longestTimerMs),
  max_output_bytes: z.number().max(maxMessageBytes),
  action: name,
  idempotency_key: idempotencyKey,
  session: name,
  input: z.boolean(),
});
export const SubmitMessage = SubmitFields.superRefine((message, context) => {
  const { session, command, environment, input, retries, service, request, stdin } = message;
  const issue = (field: string, text: string): void =>
    context.addIssue({ code: "custom", path: [field], message: text });
  if (service !== "" || request) {
    const ofCommands = { command, stdin, environment: Object.keys(environment), session, input: input ? [0] : [] };
    for (const [field, { length }] of Object.entries(ofCommands))
      if (length > 0) issue(field, "is for a command, and this is a request to a service; leave out one of them");
    if (service === "") issue("service", "is the name of the service that `request` is for");
    if (!request) issue("request", "is what the service is asked: give it, with a path");
    return;
  }
  if (command.length === 0) issue("command", "names a program");
  if (message.trajectory === "") issue("trajectory", "is where a command runs; open one, and name it");
  if (session !== "" && command.length !== 1)
    issue("command", `has ${command.length} words; in a session it is one, text for its shell: join them`);
  if (session !== "" && Object.keys(environment).length > 0)
    issue("environment", "a session has its own; leave it empty, and export in the session");
  if (input && retries > 0)
    issue("retries", "is 0 with `input`: another attempt would not get what the first has read");
});
export type SubmitMessage = z.infer<typeof SubmitMessage>;

export const AcquireMessage = SubmitFields.pick({
  kind: true,
  cost: true,
  key: true,
  elasticity: true,
  duration_seconds: true,
  priority: true,
  deadline_ms: true,
}).extend({ tenant: z.string(), service: z.string(), lease: name });
export const ReleaseMessage = z.object({
  lease: z.string().min(1),
  http_status: z.number(),
  retry_after: z.string(),
});

/** What both have that ask for units. */
type AskingMessage = Omit<z.infer<typeof AcquireMessage>, "tenant" | "service" | "lease">;

/** What is 0 on the wire is absent. */
export const limitsOf = ({ timeout_ms: timeoutMs, max_output_bytes: maxOutputBytes }: SubmitMessage) => ({
  ...(timeoutMs > 0 ? { timeoutMs } : {}),
  ...(maxOutputBytes > 0 ? { maxOutputBytes } : {}),
});

/** The `ActionSpec` in a message; what is empty on the wire is absent. */
export function specOf(message: AskingMessage, tenant: string, id: string, retries = 0) {
  const { kind, cost, key, elasticity, duration_seconds: seconds, priority, deadline_ms: deadlineMs } = message;
  return {
    id,
    kind,
    cost,
    tenant,
    priority,
    retries: { limit: retries },
    ...(key === "" ? {} : { key }),
    ...(elasticity ? { elasticity } : {}),
    ...(seconds === undefined ? {} : { duration: seconds }),
    ...(deadlineMs > 0 ? { deadlineMs } : {}),
  };
}

export const OpenTrajectoryMessage = z.object({
  trajectory: name,
  tenant: z.string(),
  memory_bytes: z.number(),
  max_processes: z.number().max(mostProcesses),
  network: z.boolean(),
  disk_bytes: z.number().refine((bytes) => bytes === 0 || (bytes >= leastDiskBytes && bytes <= mostDiskBytes), {
    error: ({ input }) =>
      `'${String(input)}' is no limit; give 0 for the server's, or ${leastDiskBytes} to ${mostDiskBytes}`,
  }),
  prepare: z.array(z.object({ words: z.array(z.string()).min(1, "names a program") })).max(64),
  restorable: z.boolean(),
  image: z.string().max(500),
  user: z.string().max(200),
  working_folder: z.union([z.literal(""), z.string().startsWith("/", "is an absolute path")]),
  environment: z.record(z.string(), z.string()).refine((all) => bytesOf(all) <= mostEnvironmentBytes, {
    error: ({ input }) =>
      `has ${bytesOf(input as Record<string, string>)} bytes, at most ${mostEnvironmentBytes} are allowed; write a file`,
  }),
  idempotency_key: idempotencyKey,
  snapshot: name,
});
export const TrajectoryMessage = z.object({ trajectory: z.string().min(1) });
export const WriteFileMessage = TrajectoryMessage.extend({ path: z.string().min(1), data: z.instanceof(Uint8Array) });
export const ReadFileMessage = TrajectoryMessage.extend({ path: z.string().min(1) });
export const CancelMessage = z.object({ action: z.string().min(1) });
const piece = z.instanceof(Uint8Array).refine((data) => data.length <= maxInputBytes, {
  error: ({ input }) =>
    `has ${(input as Uint8Array).length} bytes, at most ${maxInputBytes} are allowed; send it in pieces`,
});
/** The first says where it goes, the others nothing of it. */
export const UploadMessage = z.object({ trajectory: z.string(), path: z.string(), data: piece });
export type UploadMessage = z.infer<typeof UploadMessage>;
export type DownloadMessage = { readonly data: Uint8Array };
export const SendInputMessage = CancelMessage.extend({
  data: piece,
  offset: z.number(),
  end: z.boolean(),
});
const signalNames = commandSignals.map((signal) => signal.slice(3));
export const SignalMessage = CancelMessage.extend({
  signal: z
    .string()
    .refine((signal) => signalNames.includes(signal), {
      error: ({ input }) => `'${String(input)}' is not sent; sent are ${signalNames.join(", ")}`,
    })
    .transform((signal) => `SIG${signal}` as CommandSignal),
});
export const TakeSnapshotMessage = TrajectoryMessage.extend({ snapshot: name, idempotency_key: idempotencyKey });
export const SnapshotMessage = z.object({ snapshot: z.string().min(1) });
export const SessionMessage = TrajectoryMessage.extend({ session: z.string().min(1) });
export const OpenSessionMessage = SessionMessage.extend({ idempotency_key: idempotencyKey });
