import * as grpc from "@grpc/grpc-js";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { serviceDefinition } from "./service-definition.ts";
import { detailsOf } from "./status.ts";

const count = z.number().nonnegative();
const Curve = z
  .object({ source: z.string(), efficiency: z.array(z.object({ units: count, value: count })).default([]) })
  .transform(({ source, efficiency }) => ({
    source,
    efficiency: efficiency.map(({ units, value }) => ({ units, efficiency: value })),
  }));
const Kind = z
  .object({
    submitted: count,
    completed: count,
    failed: count,
    cancelled: count,
    retried: count,
    act_seconds: count,
    queueing_seconds: count,
    execution_seconds: count,
    overhead_seconds: count,
    longest_act_seconds: count,
    curve: Curve.nullish(),
    expected_seconds: count.optional(),
    prediction_error: count.optional(),
  })
  .transform((k) => ({
    submitted: k.submitted,
    completed: k.completed,
    failed: k.failed,
    cancelled: k.cancelled,
    retried: k.retried,
    actSeconds: k.act_seconds,
    queueingSeconds: k.queueing_seconds,
    executionSeconds: k.execution_seconds,
    overheadSeconds: k.overhead_seconds,
    longestActSeconds: k.longest_act_seconds,
    /** E(m) by units, and where it comes from; null where its last action had none */
    curve: k.curve ?? null,
    /** on one unit; null while unknown */
    expectedSeconds: k.expected_seconds ?? null,
    /** mean of |a - b| / max(a, b); null before the first expectation */
    predictionError: k.prediction_error ?? null,
  }));

const Reply = z
  .object({
    kinds: z.record(z.string(), Kind).default({}),
    waiting: count,
    running: count,
    isolation: z.string(),
    resources: z
      .record(
        z.string(),
        z
          .object({ units: count, held: count, held_seconds: count, timeline: z.array(count).default([]) })
          .transform(({ held_seconds: heldSeconds, ...rest }) => ({ ...rest, heldSeconds })),
      )
      .default({}),
    started: z
      .array(
        z
          .object({
            action: z.string(),
            kind: z.string(),
            tenant: z.string(),
            seconds_ago: count,
            waited_seconds: count,
            units: z.record(z.string(), count).default({}),
            expected_seconds: count.optional(),
            why: z.string(),
          })
          .transform((s) => ({
            action: s.action,
            kind: s.kind,
            tenant: s.tenant,
            secondsAgo: s.seconds_ago,
            waitedSeconds: s.waited_seconds,
            units: s.units,
            expectedSeconds: s.expected_seconds ?? null,
            why: s.why,
          })),
      )
      .default([]),
    tenants: z.record(z.string(), z.object({ waiting: count, running: count })).default({}),
    policy: z.string(),
    uptime_seconds: count,
    trajectories: count,
    draining: z.boolean(),
    hosts: z
      .record(
        z.string(),
        z
          .object({ cores: count, held: count, memory_bytes: count, reserved_bytes: count, away: z.string() })
          .transform(({ memory_bytes: memoryBytes, reserved_bytes: reservedBytes, ...rest }) => ({
            ...rest,
            memoryBytes,
            reservedBytes,
          })),
      )
      .default({}),
    restores: z
      .array(
        z
          .object({
            service: z.string(),
            devices: count,
            start_seconds: count.optional(),
            wake_seconds: count.optional(),
          })
          .transform(({ service, devices, start_seconds: start, wake_seconds: wake }) => {
            return { service, devices, startSeconds: start ?? null, wakeSeconds: wake ?? null };
          }),
      )
      .default([]),
    charged: z
      .record(
        z.string(),
        z
          .object({ unit_seconds: z.record(z.string(), count).default({}) })
          .transform(({ unit_seconds: unitSeconds }) => unitSeconds),
      )
      .default({}),
  })
  .transform(({ uptime_seconds: uptimeSeconds, ...rest }) => ({ ...rest, uptimeSeconds }));

/** What an actions service says of itself: means in seconds by kind of action, units by resource, the last grants. */
export type ServiceStatistics = z.infer<typeof Reply>;

export type StatisticsClientOptions = {
  /** host:port or unix:/path */
  readonly address: string;
  /** PEM; an encrypted connection to a server that this authority vouches for */
  readonly authority?: Buffer | undefined;
  readonly token?: string | undefined;
};

/** Asks an actions service for its statistics, over one connection. */
export class StatisticsClient {
  readonly #address: string;
  readonly #metadata = new grpc.Metadata();
  readonly #client: InstanceType<ReturnType<typeof grpc.makeClientConstructor>>;

  constructor({ address, authority, token }: StatisticsClientOptions) {
    this.#address = address;
    if (token !== undefined) this.#metadata.set("authorization", `Bearer ${token}`);
    const credentials =
      authority === undefined ? grpc.credentials.createInsecure() : grpc.credentials.createSsl(authority);
    const Client = grpc.makeClientConstructor(serviceDefinition(), "Actions");
    this.#client = new Client(address, credentials);
  }

  /** Throws `link.refused` when nobody answers within `timeoutMs`, `link.unauthorized` without the right token. */
  async read(timeoutMs = 5000): Promise<ServiceStatistics> {
    const reply = await new Promise<unknown>((resolve, reject) => {
      type Method = (
        message: object,
        metadata: grpc.Metadata,
        options: grpc.CallOptions,
        callback: (error: grpc.ServiceError | null, reply: unknown) => void,
      ) => grpc.ClientUnaryCall;
      const call = (this.#client.GetStatistics as Method).call(
        this.#client,
        {},
        this.#metadata,
        {},
        (error, answer) => {
          clearTimeout(timer);
          if (error === null) resolve(answer);
          else reject(this.#errorOf(error));
        },
      );
      // Not the library's own deadline, which is a wall time.
      const timer = setTimeout(() => {
        reject(this.#refused(`no answer within ${timeoutMs} ms`));
        call.cancel();
      }, timeoutMs);
    });
    return Reply.parse(reply);
  }

  close(): void {
    this.#client.close();
  }

  #errorOf(error: grpc.ServiceError): TreadleError {
    if (error.code === grpc.status.UNAUTHENTICATED)
      return new TreadleError(
        "link.unauthorized",
        `the actions service at '${this.#address}' refuses: ${error.details}`,
      );
    return this.#refused(detailsOf(error));
  }

  #refused(why: string): TreadleError {
    return new TreadleError(
      "link.refused",
      `no actions service answers at '${this.#address}': ${why}; start one with 'treadle actions serve', or give its address`,
    );
  }
}
