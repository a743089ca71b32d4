import * as grpc from "@grpc/grpc-js";
import type { ExecResult } from "../drivers/sandbox.ts";
import type { ActionContext, ActionHandle } from "../pool/action-record.ts";
import { hostOf } from "../pool/command-actions.ts";
import type { DiskBudget, Stream } from "./output-spool.ts";
import type { RepeatableActions } from "./repeatable-actions.ts";
import { type ActionEvents, SpooledCall } from "./spooled-call.ts";
import { StatusError, toStatus } from "./status.ts";

type FollowedActionOptions = {
  readonly call: grpc.ServerWritableStream<unknown, unknown>;
  readonly tenant: string;
  /** empty where the action ends with its call */
  readonly key: string;
  readonly request: object;
  readonly budget: DiskBudget;
  readonly repeatable: RepeatableActions;
};

/** Tells the calls that follow an action how it goes, and ends it where nobody reads what it prints (GS4). */
export class FollowedAction {
  readonly #options: FollowedActionOptions;
  #events: ActionEvents | undefined;
  #handle: ActionHandle<unknown> | undefined;
  #isOverBudget = false;

  constructor(options: FollowedActionOptions) {
    this.#options = options;
  }

  readonly output = (stream: Stream, chunk: Buffer): void => {
    const { repeatable, tenant } = this.#options;
    if (this.#isOverBudget || this.#events!.give(stream, chunk)) return;
    repeatable.makeRoom(tenant, chunk.length);
    if (this.#events!.give(stream, chunk)) return;
    this.#isOverBudget = true;
    this.#handle!.cancel("its client does not read what it prints, or the disk is full");
  };

  readonly started = (context: ActionContext): void => this.#started(context, "");

  readonly startedOnHost = (context: ActionContext): void => this.#started(context, hostOf(context.allocation) ?? "");

  /** `finished` is what is told of its end. */
  follow(name: string, handle: ActionHandle<unknown>, finished: Promise<object>, onEnd: () => void): void {
    const { call, tenant, key, request, budget, repeatable } = this.#options;
    const cancel = (reason: string): void => handle.cancel(reason);
    const events =
      key === ""
        ? new SpooledCall(call, budget, cancel)
        : repeatable.begin({ tenant, key, request, budget }, call, cancel);
    this.#events = events;
    this.#handle = handle;
    events.tell({ queued: { action: name } });
    const end = (error?: Partial<grpc.ServiceError>): void => {
      onEnd();
      events.end(error);
      if (key !== "") repeatable.ended(tenant, key);
    };
    finished.then(
      (how) => {
        const { queueingSeconds, overheadSeconds, executionSeconds } = handle;
        const seconds = {
          queueing_seconds: queueingSeconds,
          overhead_seconds: overheadSeconds,
          execution_seconds: executionSeconds,
        };
        events.tell({ finished: { ...how, ...seconds } });
        end();
      },
      (error: unknown) => {
        const why = new StatusError(
          grpc.status.RESOURCE_EXHAUSTED,
          `there is no room for what the action prints: tenant '${tenant}' has '${budget.usedBytes}' bytes of output that its clients have not read, of ${budget.limitBytes} that it may have, or the service's disk is full; read it, raise limits.unreadMib, or make room in the service's TMPDIR`,
        );
        end(toStatus(this.#isOverBudget ? why : error));
      },
    );
  }

  #started({ allocation, attempt, why }: ActionContext, host: string): void {
    const units = Object.fromEntries(Object.entries(allocation).map(([resource, grant]) => [resource, grant.units]));
    const cores = Object.values(allocation).flatMap((grant) => grant.cores ?? []);
    this.#events!.tell({ started: { allocation: units, cores, attempt, why, host } });
  }
}

/** How a command ended, as `Finished` has it. */
export const exitOf = ({ status, exitCode }: ExecResult): object => ({
  status,
  ...(exitCode === null ? {} : { exit_code: exitCode }),
});
