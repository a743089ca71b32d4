/**
 * The gRPC door to `CommandActions` (`protos/actions/v1`).
 *
 * GS1 where tokens are given, a tenant is its token: it sees and touches its own trajectories and actions only, and names are
 *    its own, so that it neither meets nor learns those of others. Without tokens whoever may call is trusted with everything:
 *    on loopback and at a unix socket the user of this process, and root (LD1).
 * GS2 an action whose call ended, by the client, its deadline or a lost connection, is cancelled; one with an idempotency key,
 *    when nobody repeats the call in time (`RepeatableActions`).
 * GS3 after `close` no call is open and no trajectory is left.
 * GS4 a tenant's trajectories and actions never exceed its limits, so that one cannot take the others' memory of the server.
 *    What its clients have not read of its output is bounded, too, and is in a file, not in memory (`OutputSpool`).
 */
import { randomUUID } from "node:crypto";
import { performance } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import * as grpc from "@grpc/grpc-js";
import type { z } from "zod";
import type { CommandSignal, SandboxNetwork } from "../drivers/sandbox.ts";
import type { CheckedArchive, PackOptions } from "../drivers/sandbox-archive.ts";
import { endInTurn } from "../end-in-turn.ts";
import type { UpstreamModel } from "../openai/upstream.ts";
import type { ActionHandle } from "../pool/action-record.ts";
import type { CommandActions } from "../pool/command-actions.ts";
import type { LeasedServices } from "../services/leased-services.ts";
import { ActionInput, sendInput } from "./action-input.ts";
import { exitOf, FollowedAction } from "./followed-action.ts";
import { Leases } from "./leases.ts";
import {
  authorizationIn,
  endCalls,
  guardedServer,
  listen,
  tenantOf as tenantIn,
  usualStallMs,
  whenOver,
} from "./listen.ts";
import {
  AcquireMessage,
  CancelMessage,
  limitsOf,
  maxInputBytes,
  maxMessageBytes,
  OpenSessionMessage,
  OpenTrajectoryMessage,
  ReadFileMessage,
  ReleaseMessage,
  SendInputMessage,
  SessionMessage,
  SignalMessage,
  SnapshotMessage,
  SubmitMessage,
  specOf,
  TakeSnapshotMessage,
  TrajectoryMessage,
  type UploadMessage,
  WriteFileMessage,
} from "./messages.ts";
import { onCores } from "./on-cores.ts";
import { OpenTrajectories, type OpenTrajectory } from "./open-trajectories.ts";
import { DiskBudget } from "./output-spool.ts";
import { RepeatableActions, repeatFailures } from "./repeatable-actions.ts";
import { answerOf, requestOf, servedFor } from "./service-action.ts";
import { serviceDefinition } from "./service-definition.ts";
import { Snapshots } from "./snapshots.ts";
import { type HostLoad, statisticsOf } from "./statistics-reply.ts";
import { type EndingCall, goneOf, read, StatusError, toStatus } from "./status.ts";
import { Transfers } from "./transfers.ts";

export type ActionServerOptions = {
  /** such as `127.0.0.1:0`, or `unix:/run/actions.sock` */
  readonly address: string;
  /** PEM; without it the connection is not encrypted, which is for one machine only */
  readonly tls?:
    | { readonly key: Buffer; readonly certificate: Buffer; readonly clientAuthority?: Buffer | undefined }
    | undefined;
  /** tenant by token, sent as `authorization: Bearer <token>`; without it clients name their tenant themselves */
  readonly tokens?: ReadonlyMap<string, string> | undefined;
  /** without tokens: serves whoever connects, not its own user alone */
  readonly insecure?: boolean | undefined;
  /** open at once, all together; of one address of another machine, half of them */
  readonly connections?: number | undefined;
  readonly limits?: ActionServerLimits | undefined;
  /** of the pool's, those that only commands get */
  readonly commandResources?: readonly string[] | undefined;
  readonly services?: LeasedServices | undefined;
  /** models of external APIs, which requests may be for */
  readonly upstreams?: readonly UpstreamModel[] | undefined;
  /** the machines that commands run on, by name; absent where it is this one */
  readonly hosts?: (() => Readonly<Record<string, HostLoad>>) | undefined;
  /** what a trajectory may ask for; default `none` */
  readonly network?: "none" | SandboxNetwork | undefined;
  /** how long a connection may say nothing before it is asked */
  readonly keepaliveMs?: number | undefined;
  /** how long a client that moves an archive may do nothing, and how long what a call asks for may be on its way */
  readonly stallMs?: number | undefined;
};

/** What was taken before something began that throws. */
function orGiveBack<Result>(giveBack: () => void, begin: () => Result): Result {
  try {
    return begin();
  } catch (error) {
    giveBack();
    throw error;
  }
}

const defaultKeepaliveMs = 20_000;
const defaultUnreadBytes = 256 * 2 ** 20;
const defaultRepeatMs = 60_000;
const defaultSnapshots = 256;
const defaultSnapshotBytes = 2 ** 34;
const defaultTransferBytes = 2 ** 32;
const defaultTransferEntries = 250_000;

/** What one tenant may ask for. */
export type ActionServerLimits = {
  /** open at once */
  readonly trajectories?: number | undefined;
  /** waiting and running at once */
  readonly actions?: number | undefined;
  /** of output that its clients have not read */
  readonly unreadBytes?: number | undefined;
  /** of a trajectory that states nothing */
  readonly memoryBytes?: number | undefined;
  /** the most that a trajectory may state */
  readonly maxMemoryBytes?: number | undefined;
  /** of the files of a trajectory that states nothing */
  readonly diskBytes?: number | undefined;
  readonly maxDiskBytes?: number | undefined;
  /** kept at once */
  readonly snapshots?: number | undefined;
  /** of all snapshots */
  readonly snapshotBytes?: number | undefined;
  /** of the archives of files that are on their way, and of the files of one of them */
  readonly transferBytes?: number | undefined;
  /** files, folders and links of one archive */
  readonly transferEntries?: number | undefined;
  /** how long a trajectory stays open without a call (GS5), and a snapshot without one */
  readonly idleMs?: number | undefined;
  /** how long an action with an idempotency key waits for its call to be repeated, and is remembered after its end */
  readonly repeatMs?: number | undefined;
};

export type ActionServer = {
  readonly port: number;
  /** what whoever started it should know of who can call */
  readonly warning: string | undefined;
  /** of output that the tenant's clients have not read */
  unreadBytes(tenant: string): number;
  /** Refuses what is new, and waits for what is queued and runs; resolves with how many that still are after `timeoutMs`. */
  drain(timeoutMs: number): Promise<number>;
  close(): Promise<void>;
};

type Owned = { readonly tenant: string };
type RunningAction = Owned & {
  readonly handle: ActionHandle<unknown>;
  readonly input?: ActionInput | undefined;
  /** once its command runs */
  signal?: ((name: CommandSignal) => void) | undefined;
};
type Call = EndingCall & { readonly metadata: grpc.Metadata };

export async function serveActions(actions: CommandActions, options: ActionServerOptions): Promise<ActionServer> {
  const trajectories = new OpenTrajectories(actions);
  const running = new Map<string, RunningAction>();
  const unread = new Map<string, DiskBudget>();
  const unreadOf = (tenant: string): DiskBudget => {
    let budget = unread.get(tenant);
    if (budget === undefined) {
      for (const [name, one] of unread) if (one.usedBytes === 0) unread.delete(name);
      budget = new DiskBudget(options.limits?.unreadBytes ?? defaultUnreadBytes);
      unread.set(tenant, budget);
    }
    return budget;
  };
  const { tokens, limits = {} } = options;
  const repeatMs = limits.repeatMs ?? defaultRepeatMs;
  const repeatable = new RepeatableActions(repeatMs);
  const snapshots = new Snapshots({
    count: limits.snapshots ?? defaultSnapshots,
    bytes: limits.snapshotBytes ?? defaultSnapshotBytes,
    idleMs: limits.idleMs,
  });
  const transfers = new Transfers({
    bytes: limits.transferBytes ?? defaultTransferBytes,
    entries: limits.transferEntries ?? defaultTransferEntries,
    stallMs: options.stallMs ?? usualStallMs,
  });
  const beganMs = performance.now();
  let isDraining = false;

  /** GS4 */
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
  /** 0: nothing is stated */
  const stated = (field: string, value: number, own: number | undefined, most = Number.POSITIVE_INFINITY) => {
    if (value <= most) return value > 0 ? value : own;
    throw new StatusError(
      grpc.status.INVALID_ARGUMENT,
      `${field}: '${value}' was asked for, a trajectory may have ${most}; ask for less`,
    );
  };

  // With tokens, none comes here without one.
  const tenantOf = (call: Call): string | undefined => tokens && tenantIn(tokens, authorizationIn(call.metadata));
  /** GS4; returns what gives it back. */
  const keep = (tenant: string, bytes: number): (() => void) => {
    const budget = unreadOf(tenant);
    if (!budget.take(bytes))
      throw new StatusError(
        grpc.status.RESOURCE_EXHAUSTED,
        `'${bytes}' bytes of input or of a file find no room: tenant '${tenant}' has ${budget.usedBytes} bytes on their way, of ${budget.limitBytes}; wait for some to arrive, or raise limits.unreadMib`,
      );
    return () => budget.give(bytes);
  };
  /** GS1: what it is called behind this door. */
  const idOf = (tenant: string | undefined, trajectory: string): string =>
    tokens === undefined ? trajectory : ownName(tenant!, trajectory);
  const ownTrajectory = (call: Call, trajectory: string): OpenTrajectory => {
    const owned = trajectories.get(idOf(tenantOf(call), trajectory));
    if (owned === undefined)
      throw new StatusError(
        grpc.status.NOT_FOUND,
        `trajectory '${trajectory}' is not open; open it first${
          limits.idleMs === undefined ? "" : `, and again when nobody has used it for ${limits.idleMs / 1000} s`
        }`,
      );
    return owned;
  };
  const closeIdle = (idleMs: number): void => {
    snapshots.dropIdle();
    trajectories.closeIdle(idleMs);
  };
  const sweep =
    limits.idleMs === undefined
      ? undefined
      : setInterval(closeIdle, Math.min(limits.idleMs / 4, 60_000), limits.idleMs).unref();

  const submit = (call: grpc.ServerWritableStream<unknown, unknown>): void => {
    const message = read(SubmitMessage, call.request);
    const owned = message.trajectory === "" ? undefined : ownTrajectory(call, message.trajectory);
    const tenant = owned?.tenant ?? tenantOf(call) ?? (message.tenant || "default");
    const { idempotency_key: key, command, service } = message;
    const repeat = key === "" ? "first" : repeatable.join(tenant, key, message, call);
    if (repeat === "joined") return;
    if (repeat !== "first") {
      const { status, message: say } = repeatFailures[repeat];
      throw new StatusError(status, say(key));
    }
    admit("actions", tenant, running.values());
    // Ids of one tenant must not meet those of another.
    const name = message.action === "" ? randomUUID() : message.action;
    const id = ownName(tenant, name);
    const asked = specOf(message, tenant, id, message.retries);
    const given = [command, Object.entries(message.environment), message.request?.headers];
    const giveBack = keep(tenant, message.stdin.length + (message.request?.body.length ?? 0) + bytesOf(given));
    const action = new FollowedAction({ call, tenant, key, request: message, budget: unreadOf(tenant), repeatable });
    let own: Partial<RunningAction> = {};
    const begin = (): readonly [ActionHandle<unknown>, Promise<object>] => {
      if (service !== "") {
        const { spec, execute } = requestOf(options, message, asked, action);
        refuseCores(asked.cost);
        const handle =
          owned === undefined
            ? actions.pool.submit(spec, execute)
            : actions.submitOutside(owned.id, { ...spec }, execute);
        return [handle, handle.result.then((result) => answerOf(result))];
      }
      const cores = options.commandResources ?? [];
      const input = message.input ? new ActionInput(maxInputBytes, message.stdin) : undefined;
      own = { input };
      const request = {
        command: command as [string, ...string[]],
        environment: message.environment,
        stdin: input?.stream ?? message.stdin,
        session: message.session === "" ? undefined : message.session,
        onStart: (signal: (name: CommandSignal) => void) => {
          entry.signal = signal;
        },
        keepsOutput: false,
        onOutput: action.output,
        ...limitsOf(message),
      };
      const spec = onCores(asked, command, cores, actions.pool.history.stored.get(asked.kind));
      const started = options.hosts === undefined ? action.started : action.startedOnHost;
      const handle = actions.submit(owned!.id, spec, request, started);
      return [handle, handle.result.then(exitOf)];
    };
    const [handle, finished] = orGiveBack(giveBack, begin);
    const entry: RunningAction = { tenant, handle, ...own };
    running.set(id, entry);
    const settled = owned === undefined ? finished : trajectories.using(owned, finished);
    action.follow(name, handle, settled, () => {
      giveBack();
      running.delete(id);
    });
  };

  /** They are for commands. */
  const refuseCores = (cost: object): void => {
    for (const resource of Object.keys(cost))
      if (options.commandResources?.includes(resource))
        throw new StatusError(
          grpc.status.INVALID_ARGUMENT,
          `cost.${resource}: is for commands, which run where it is; submit one, or ask for something else`,
        );
  };

  const actionsOf = (call: Call, name: string): RunningAction[] => {
    const tenant = tenantOf(call);
    // Without tokens tenants are names that clients give; the action's own name decides.
    const keys =
      tenant === undefined
        ? [...running.keys()].filter((key) => key.slice(key.indexOf("/") + 1) === name)
        : [ownName(tenant, name)];
    return keys.map((key) => running.get(key)).filter((one) => one !== undefined);
  };

  const leases = new Leases(actions.pool);
  const acquire = (call: grpc.ServerWritableStream<unknown, unknown>): void => {
    const message = read(AcquireMessage, call.request);
    const tenant = tenantOf(call) ?? (message.tenant || "default");
    admit("actions", tenant, running.values());
    const { service } = message;
    if (service !== "") servedFor(options, message);
    refuseCores(message.cost);
    const name = message.lease === "" ? randomUUID() : message.lease;
    // Commands of the tenant may have the same names.
    const key = ownName(tenant, `lease/${name}`);
    const spec = { ...specOf(message, tenant, key), ...(service === "" ? {} : { service }) };
    const handle = leases.acquire(spec, ({ allocation, why }) => {
      const units = Object.fromEntries(Object.entries(allocation).map(([resource, grant]) => [resource, grant.units]));
      const url = service === "" ? "" : options.services!.urlOf(service, allocation);
      call.write({ granted: { allocation: units, url, why } });
    });
    running.set(key, { tenant, handle });
    call.on("cancelled", () => handle.cancel("its caller went away"));
    call.write({ queued: { lease: name } });
    handle.result
      .then(
        () => call.end(),
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
    OpenTrajectory: unary(OpenTrajectoryMessage, async (message, call) => {
      const tenant = tenantOf(call) ?? (message.tenant || "default");
      const { idempotency_key: idempotencyKey } = message;
      const trajectory = message.trajectory || idempotencyKey || randomUUID();
      const id = idOf(tenant, trajectory);
      const reply = { trajectory, repeat_seconds: repeatMs / 1000 };
      await actions.closed(id); // GS6
      const open = trajectories.get(id);
      if (open?.tenant === tenant && idempotencyKey !== "" && open.idempotencyKey === idempotencyKey) return reply;
      admit("trajectories", tenant, trajectories.all());
      const { network = "none" } = options;
      if (message.network && network === "none")
        throw new StatusError(
          grpc.status.PERMISSION_DENIED,
          "network: this server gives sandboxes none; leave it out, or set network in the server's configuration",
        );
      const { snapshot } = message;
      actions.openTrajectory(id, {
        tenant,
        from: snapshot === "" ? undefined : snapshots.find(idOf(tenant, snapshot), snapshot),
        network: message.network && network !== "none" ? network : undefined,
        prepare: message.prepare.map(({ words }) => words as [string, ...string[]]),
        isRestorable: message.restorable,
        environment: message.environment,
        container: {
          image: message.image || undefined,
          user: message.user || undefined,
          workingFolder: message.working_folder || undefined,
        },
        memoryBytes: stated("memory_bytes", message.memory_bytes, limits.memoryBytes, limits.maxMemoryBytes),
        diskBytes: stated("disk_bytes", message.disk_bytes, limits.diskBytes, limits.maxDiskBytes),
        ...(message.max_processes > 0 ? { maxProcesses: message.max_processes } : {}),
      });
      trajectories.add({ id, tenant, idempotencyKey });
      return reply;
    }),
    Submit: (call: grpc.ServerWritableStream<unknown, unknown>) => {
      try {
        submit(call);
      } catch (error) {
        call.emit("error", toStatus(error));
      }
    },
    Acquire: (call: grpc.ServerWritableStream<unknown, unknown>) => {
      try {
        acquire(call);
      } catch (error) {
        call.emit("error", toStatus(error));
      }
    },
    Release: unary(ReleaseMessage, ({ lease, http_status: httpStatus, retry_after: retryAfter }, call) => {
      const tenant = tenantOf(call);
      const keys =
        tenant === undefined
          ? [...running.keys()].filter((key) => key.endsWith(`/lease/${lease}`))
          : [ownName(tenant, `lease/${lease}`)];
      if (keys.some((key) => leases.release(key, { httpStatus, retryAfter }))) return {};
      throw new StatusError(
        grpc.status.NOT_FOUND,
        `lease '${lease}' is not held: it was released, or ended with its call; acquire another`,
      );
    }),
    Cancel: unary(CancelMessage, ({ action }, call) => {
      const found = actionsOf(call, action);
      for (const { handle } of found) handle.cancel();
      return { found: found.length > 0 };
    }),
    SendInput: unary(SendInputMessage, ({ action, data, offset, end }, call) => {
      const found = actionsOf(call, action);
      if (found.length === 0)
        throw new StatusError(
          grpc.status.NOT_FOUND,
          `action '${action}' has ended, or was never submitted; submit another`,
        );
      for (const { input } of found) sendInput(action, input, offset, data, end);
    }),
    Signal: unary(SignalMessage, ({ action, signal }, call) => {
      const found = actionsOf(call, action).filter((one) => one.signal !== undefined);
      for (const one of found) one.signal!(signal);
      return { found: found.length > 0 };
    }),
    OpenSession: unary(OpenSessionMessage, ({ trajectory, session, idempotency_key: key }, call) => {
      const { id, sessionKeys } = ownTrajectory(call, trajectory);
      if (key !== "" && sessionKeys.get(session) === key) return;
      actions.openSession(id, session);
      sessionKeys.set(session, key);
    }),
    CloseSession: unary(SessionMessage, ({ trajectory, session }, call) => {
      const { id, sessionKeys } = ownTrajectory(call, trajectory);
      actions.closeSession(id, session);
      sessionKeys.delete(session);
    }),
    WriteFile: unary(WriteFileMessage, ({ trajectory, path, data }, call) => {
      const owned = ownTrajectory(call, trajectory);
      const giveBack = keep(owned.tenant, data.length);
      return trajectories.using(owned, actions.writeFile(owned.id, path, data, goneOf(call))).finally(giveBack);
    }),
    ReadFile: unary(ReadFileMessage, async ({ trajectory, path }, call) => {
      const owned = ownTrajectory(call, trajectory);
      const data = await trajectories.using(owned, actions.readFile(owned.id, path, maxMessageBytes / 2, goneOf(call)));
      whenOver(call.metadata, keep(owned.tenant, data.length));
      return { data };
    }),
    Upload: (call: grpc.ServerReadableStream<unknown, unknown>, callback: grpc.sendUnaryData<unknown>) => {
      const begin = ({ trajectory, path }: UploadMessage) => {
        const owned = ownTrajectory(call, read(ReadFileMessage, { trajectory, path }).trajectory);
        const unpack = (archive: CheckedArchive, signal: AbortSignal) =>
          trajectories.using(owned, actions.upload(owned.id, path, archive, signal));
        return { tenant: owned.tenant, unpack };
      };
      transfers.upload(call, begin).then(
        () => callback(null, {}),
        (error: unknown) => callback(toStatus(error)),
      );
    },
    Download: (call: grpc.ServerWritableStream<unknown, unknown>) => {
      const run = async (): Promise<void> => {
        const { trajectory, path } = read(ReadFileMessage, call.request);
        const owned = ownTrajectory(call, trajectory);
        const pack = (options: PackOptions) => actions.download(owned.id, path, options);
        await trajectories.using(owned, transfers.download(call, owned.tenant, pack));
      };
      run().then(
        () => call.end(),
        (error: unknown) => call.emit("error", toStatus(error)),
      );
    },
    TakeSnapshot: unary(TakeSnapshotMessage, async (message, call) => {
      const owned = ownTrajectory(call, message.trajectory);
      const { tenant } = owned;
      const shown = message.snapshot || randomUUID();
      const { idempotency_key: idempotencyKey } = message;
      const taken = snapshots.take({ tenant, name: idOf(tenant, shown), shown, idempotencyKey }, (maxBytes) =>
        actions.snapshot(owned.id, maxBytes),
      );
      return { snapshot: shown, size_bytes: (await trajectories.using(owned, taken)).bytes };
    }),
    DropSnapshot: unary(SnapshotMessage, ({ snapshot }, call) =>
      snapshots.drop(idOf(tenantOf(call), snapshot), snapshot),
    ),
    CloseTrajectory: unary(TrajectoryMessage, async ({ trajectory }, call) => {
      await trajectories.close(ownTrajectory(call, trajectory));
    }),
    GetStatistics: unary(OpenTrajectoryMessage.partial(), (_, call) => {
      const tenant = tenantOf(call);
      return {
        ...statisticsOf(actions, tenant, options.hosts?.(), options.services?.restoreCosts()),
        uptime_seconds: (performance.now() - beganMs) / 1000,
        trajectories: [...trajectories.all()].filter((one) => tenant === undefined || one.tenant === tenant).length,
        draining: isDraining,
      };
    }),
  };

  let server!: grpc.Server;
  const listening = await listen(options, (guard) => {
    // A client whose connection died without a word is found, and its actions end (GS2).
    server = guardedServer(guard, { keepaliveMs: options.keepaliveMs ?? defaultKeepaliveMs, maxMessageBytes });
    server.addService(serviceDefinition(), implementation);
    return server;
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
    listening.stop();
    await endInTurn(
      () => trajectories.closeAll(),
      () => [snapshots.close()],
      () => {
        repeatable.close();
        return [endCalls(server)];
      },
      () => [listening.close()],
    );
  };
  let closing: Promise<void> | undefined;
  return {
    port: listening.port,
    warning: listening.warning,
    unreadBytes: (tenant) => unread.get(tenant)?.usedBytes ?? 0,
    drain,
    close() {
      closing ??= close();
      return closing;
    },
  };
}

const bytesOf = (words: unknown): number => Buffer.byteLength(JSON.stringify(words));

/** No other tenant's is the same. */
const ownName = (tenant: string, name: string): string => `${encodeURIComponent(tenant)}/${name}`;
