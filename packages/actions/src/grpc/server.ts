/**
 * The gRPC door to `CommandActions` (protos/actions/v1).
 *
 * R1 a tenant sees and touches its own trajectories and actions only; where tokens are given, a tenant is its token.
 * R2 an action whose call ended, by the client, its deadline or a lost connection, is cancelled.
 * R3 after `close` no call is open and no trajectory is left.
 * R4 a tenant's trajectories and actions never exceed its limits, so that one cannot take the others' memory of the server.
 * R5 a trajectory that no call has used for `limits.idleMs` is closed: its client may have died without a word.
 */
import { randomUUID } from "node:crypto";
import { performance } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import * as grpc from "@grpc/grpc-js";
import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import type { ExecResult } from "../drivers/sandbox.ts";
import type { ActionHandle } from "../pool/action-record.ts";
import type { CommandActions } from "../pool/command-actions.ts";
import {
  CancelMessage,
  maxMessageBytes,
  OpenTrajectoryMessage,
  ReadFileMessage,
  SubmitMessage,
  specOf,
  TrajectoryMessage,
  WriteFileMessage,
} from "./messages.ts";
import { serviceDefinition } from "./service-definition.ts";

export type ActionServerOptions = {
  /** such as `127.0.0.1:0`, or `unix:/run/actions.sock` */
  readonly address: string;
  /** PEM; without it the connection is not encrypted, which is for one machine only */
  readonly tls?:
    | { readonly key: Buffer; readonly certificate: Buffer; readonly clientAuthority?: Buffer | undefined }
    | undefined;
  /** tenant by token, sent as `authorization: Bearer <token>`; without it clients name their tenant themselves */
  readonly tokens?: ReadonlyMap<string, string> | undefined;
  readonly limits?: ActionServerLimits | undefined;
};

/** What one tenant may ask for. */
export type ActionServerLimits = {
  /** open at once */
  readonly trajectories?: number | undefined;
  /** waiting and running at once */
  readonly actions?: number | undefined;
  /** of a trajectory that states nothing */
  readonly memoryBytes?: number | undefined;
  /** the most that a trajectory may state */
  readonly maxMemoryBytes?: number | undefined;
  /** how long a trajectory stays open without a call (R5) */
  readonly idleMs?: number | undefined;
};

export type ActionServer = {
  readonly port: number;
  /** Refuses what is new, and waits for what is queued and runs; resolves with how many that still are after `timeoutMs`. */
  drain(timeoutMs: number): Promise<number>;
  close(): Promise<void>;
};

type Owned = { readonly tenant: string };
/** `calls` use it now; when there are none, none has since `lastMs` */
type OwnedTrajectory = Owned & { calls: number; lastMs: number };
type Call = grpc.ServerUnaryCall<unknown, unknown> | grpc.ServerWritableStream<unknown, unknown>;

export async function serveActions(actions: CommandActions, options: ActionServerOptions): Promise<ActionServer> {
  const trajectories = new Map<string, OwnedTrajectory>();
  const running = new Map<string, Owned & { handle: ActionHandle<ExecResult> }>();
  const { tokens, tls, limits = {} } = options;
  const beganMs = performance.now();
  let isDraining = false;

  /** R4 */
  const admit = (what: "trajectories" | "actions", tenant: string, owned: Iterable<Owned>): void => {
    if (isDraining)
      throw new StatusError(grpc.status.UNAVAILABLE, "the server is about to end and takes nothing new; try another");
    const limit = limits[what];
    if (limit === undefined || [...owned].filter((one) => one.tenant === tenant).length < limit) return;
    throw new StatusError(
      grpc.status.RESOURCE_EXHAUSTED,
      `tenant '${tenant}' has ${limit} ${what} already, which is its limit; wait for some to end, or raise limits.${what}`,
    );
  };
  const memoryOf = (stated: number): number | undefined => {
    const { maxMemoryBytes = Number.POSITIVE_INFINITY, memoryBytes } = limits;
    if (stated <= maxMemoryBytes) return stated > 0 ? stated : memoryBytes;
    throw new StatusError(
      grpc.status.INVALID_ARGUMENT,
      `memory_bytes: '${stated}' was asked for, a trajectory may have ${maxMemoryBytes}; ask for less`,
    );
  };

  const tenantOf = (call: Call): string | undefined => {
    if (tokens === undefined) return undefined;
    const token = /^Bearer (.+)$/.exec(String(call.metadata.get("authorization")[0] ?? ""))?.[1];
    const tenant = token === undefined ? undefined : tokens.get(token);
    if (tenant === undefined)
      throw new StatusError(
        grpc.status.UNAUTHENTICATED,
        "a known token is needed: send 'authorization: Bearer <token>'",
      );
    return tenant;
  };
  /** R1 */
  const ownTrajectory = (call: Call, trajectory: string): OwnedTrajectory => {
    const tenant = tenantOf(call);
    const owned = trajectories.get(trajectory);
    if (owned === undefined || (tenant !== undefined && owned.tenant !== tenant))
      throw new StatusError(
        grpc.status.NOT_FOUND,
        `trajectory '${trajectory}' is not open; open it first${
          limits.idleMs === undefined ? "" : `, and again when nobody has used it for ${limits.idleMs / 1000} s`
        }`,
      );
    return owned;
  };
  /** R5 */
  const using = async <Result>(owned: OwnedTrajectory, run: Promise<Result>): Promise<Result> => {
    owned.calls++;
    try {
      return await run;
    } finally {
      owned.calls--;
      owned.lastMs = performance.now();
    }
  };
  const closeIdle = (idleMs: number): void => {
    for (const [trajectory, { calls, lastMs }] of trajectories) {
      if (calls > 0 || performance.now() - lastMs < idleMs) continue;
      trajectories.delete(trajectory);
      void actions.closeTrajectory(trajectory).catch(() => {});
    }
  };
  const sweep =
    limits.idleMs === undefined
      ? undefined
      : setInterval(closeIdle, Math.min(limits.idleMs / 4, 60_000), limits.idleMs).unref();

  const submit = (call: grpc.ServerWritableStream<unknown, unknown>): void => {
    const message = read(SubmitMessage, call.request);
    const owned = ownTrajectory(call, message.trajectory);
    const { tenant } = owned;
    admit("actions", tenant, running.values());
    // Ids of one tenant must not meet those of another.
    const name = message.action === "" ? randomUUID() : message.action;
    const key = `${tenant}/${name}`;
    const [program, ...args] = message.command as [string, ...string[]];
    const handle = actions.submit(
      message.trajectory,
      specOf(message, tenant, key),
      {
        command: [program, ...args],
        environment: message.environment,
        stdin: message.stdin,
        onOutput: (stream, chunk) => void call.write({ output: { [stream]: chunk } }),
        ...(message.timeout_ms > 0 ? { timeoutMs: message.timeout_ms } : {}),
        ...(message.max_output_bytes > 0 ? { maxOutputBytes: message.max_output_bytes } : {}),
      },
      ({ allocation, attempt, why }) => {
        const units = Object.fromEntries(
          Object.entries(allocation).map(([resource, grant]) => [resource, grant.units]),
        );
        const cores = Object.values(allocation).flatMap((grant) => grant.cores ?? []);
        call.write({ started: { allocation: units, cores, attempt, why } });
      },
    );
    running.set(key, { tenant, handle });
    call.on("cancelled", () => handle.cancel("its caller went away"));
    call.write({ queued: { action: name } });
    using(owned, handle.result)
      .then(
        ({ status, exitCode }) => {
          const { queueingSeconds, overheadSeconds, executionSeconds } = handle;
          call.write({
            finished: {
              status,
              ...(exitCode === null ? {} : { exit_code: exitCode }),
              queueing_seconds: queueingSeconds,
              overhead_seconds: overheadSeconds,
              execution_seconds: executionSeconds,
            },
          });
          call.end();
        },
        (error: unknown) => call.emit("error", toStatus(error)),
      )
      .finally(() => running.delete(key));
  };

  const unary =
    <Schema extends z.ZodType>(schema: Schema, answer: (message: z.infer<Schema>, call: Call) => unknown) =>
    (call: grpc.ServerUnaryCall<unknown, unknown>, callback: grpc.sendUnaryData<unknown>): void => {
      void Promise.resolve()
        .then(() => answer(read(schema, call.request), call))
        .then(
          (reply) => callback(null, reply ?? {}),
          (error: unknown) => callback(toStatus(error)),
        );
    };

  const implementation: grpc.UntypedServiceImplementation = {
    OpenTrajectory: unary(OpenTrajectoryMessage, (message, call) => {
      const tenant = tenantOf(call) ?? (message.tenant || "default");
      const trajectory = message.trajectory || randomUUID();
      admit("trajectories", tenant, trajectories.values());
      actions.openTrajectory(trajectory, {
        network: message.network,
        memoryBytes: memoryOf(message.memory_bytes),
        ...(message.max_processes > 0 ? { maxProcesses: message.max_processes } : {}),
      });
      trajectories.set(trajectory, { tenant, calls: 0, lastMs: performance.now() });
      return { trajectory };
    }),
    Submit: (call: grpc.ServerWritableStream<unknown, unknown>) => {
      try {
        submit(call);
      } catch (error) {
        call.emit("error", toStatus(error));
      }
    },
    Cancel: unary(CancelMessage, ({ action }, call) => {
      const tenant = tenantOf(call);
      // Without tokens tenants are names that clients give; the action's own name decides.
      const keys =
        tenant === undefined
          ? [...running.keys()].filter((k) => k.slice(k.indexOf("/") + 1) === action)
          : [`${tenant}/${action}`];
      const found = keys.map((k) => running.get(k)).filter((r) => r !== undefined);
      for (const { handle } of found) handle.cancel();
      return { found: found.length > 0 };
    }),
    WriteFile: unary(WriteFileMessage, ({ trajectory, path, data }, call) => {
      return using(ownTrajectory(call, trajectory), actions.writeFile(trajectory, path, data));
    }),
    ReadFile: unary(ReadFileMessage, async ({ trajectory, path }, call) => {
      const owned = ownTrajectory(call, trajectory);
      return { data: await using(owned, actions.readFile(trajectory, path, maxMessageBytes / 2)) };
    }),
    CloseTrajectory: unary(TrajectoryMessage, async ({ trajectory }, call) => {
      ownTrajectory(call, trajectory);
      trajectories.delete(trajectory);
      await actions.closeTrajectory(trajectory);
    }),
    GetStatistics: unary(OpenTrajectoryMessage.partial(), (_, call) => {
      const tenant = tenantOf(call);
      /** R1 */
      const isVisible = (of: string): boolean => tenant === undefined || of === tenant;
      const kinds = Object.fromEntries(
        Object.entries(actions.pool.statistics()).map(([kind, s]) => [
          kind,
          {
            submitted: s.submitted,
            completed: s.completed,
            failed: s.failed,
            cancelled: s.cancelled,
            retried: s.retried,
            act_seconds: s.actSeconds,
            queueing_seconds: s.queueingSeconds,
            execution_seconds: s.executionSeconds,
            overhead_seconds: s.overheadSeconds,
            longest_act_seconds: s.longestActSeconds,
          },
        ]),
      );
      const { numWaiting, numRunning, policy } = actions.pool;
      return {
        kinds,
        waiting: numWaiting,
        running: numRunning,
        isolation: actions.driver.isolation,
        resources: Object.fromEntries(
          Object.entries(actions.pool.usage()).map(([resource, { units, held, heldSeconds, timeline }]) => [
            resource,
            { units, held, held_seconds: heldSeconds, timeline },
          ]),
        ),
        started: actions.pool.recentStarts().flatMap((start) =>
          !isVisible(start.tenant)
            ? []
            : {
                action: start.id,
                kind: start.kind,
                tenant: start.tenant,
                seconds_ago: start.secondsAgo,
                waited_seconds: start.waitedSeconds,
                units: start.units,
                ...(start.expectedSeconds === undefined ? {} : { expected_seconds: start.expectedSeconds }),
                why: start.why,
              },
        ),
        tenants: Object.fromEntries(Object.entries(actions.pool.tenants()).filter(([name]) => isVisible(name))),
        policy,
        uptime_seconds: (performance.now() - beganMs) / 1000,
        trajectories: trajectories.size,
        draining: isDraining,
      };
    }),
  };

  const server = new grpc.Server({
    "grpc.max_receive_message_length": maxMessageBytes,
    "grpc.max_send_message_length": maxMessageBytes,
  });
  server.addService(serviceDefinition(), implementation);
  const credentials =
    tls === undefined
      ? grpc.ServerCredentials.createInsecure()
      : grpc.ServerCredentials.createSsl(
          tls.clientAuthority ?? null,
          [{ private_key: tls.key, cert_chain: tls.certificate }],
          tls.clientAuthority !== undefined,
        );
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync(options.address, credentials, (error, bound) => (error === null ? resolve(bound) : reject(error)));
  }).catch((cause: Error) => {
    throw new TreadleError(
      "config.invalid",
      `nothing can listen at '${options.address}': ${cause.message}; give a free port of this machine, or port 0 for any`,
      { cause },
    );
  });
  const drain = async (timeoutMs: number): Promise<number> => {
    isDraining = true;
    const ends = Promise.allSettled([...running.values()].map(({ handle }) => handle.result));
    await Promise.race([ends, delay(timeoutMs, undefined, { ref: false })]);
    return actions.pool.numWaiting + actions.pool.numRunning;
  };
  const close = async (): Promise<void> => {
    clearInterval(sweep);
    for (const { handle } of running.values()) handle.cancel("the server was closed");
    const open = [...trajectories.keys()];
    trajectories.clear();
    await Promise.all(open.map((t) => actions.closeTrajectory(t)));
    await new Promise<void>((resolve) => {
      // Calls that wait for nothing more end by themselves; the others are cut after a moment.
      const cut = setTimeout(() => server.forceShutdown(), 1000);
      server.tryShutdown(() => {
        clearTimeout(cut);
        resolve();
      });
    });
  };
  let closing: Promise<void> | undefined;
  return {
    port,
    drain,
    close() {
      closing ??= close();
      return closing;
    },
  };
}

class StatusError extends Error {
  readonly status: grpc.status;

  constructor(status: grpc.status, message: string) {
    super(message);
    this.status = status;
  }
}

function read<Schema extends z.ZodType>(schema: Schema, message: unknown): z.infer<Schema> {
  const parsed = schema.safeParse(message);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map((i) => `${i.path.join(".") || "message"}: ${i.message}`);
  throw new StatusError(grpc.status.INVALID_ARGUMENT, problems.join("; "));
}

/** The error's code travels as `treadle-code`, so that a client branches on it and not on text. */
function toStatus(error: unknown): Partial<grpc.ServiceError> & { code: grpc.status; details: string } {
  const metadata = new grpc.Metadata();
  if (error instanceof StatusError) return { code: error.status, details: error.message, metadata };
  if (!(error instanceof TreadleError))
    return { code: grpc.status.INTERNAL, details: error instanceof Error ? error.message : String(error), metadata };
  metadata.set("treadle-code", error.code);
  const byDisposition = {
    misuse: grpc.status.INVALID_ARGUMENT,
    retryable: grpc.status.UNAVAILABLE,
    fatal: grpc.status.INTERNAL,
    cancelled: grpc.status.CANCELLED,
  } as const;
  const code = error.code === "action.deadline" ? grpc.status.DEADLINE_EXCEEDED : byDisposition[error.disposition];
  return { code, details: error.message, metadata };
}
