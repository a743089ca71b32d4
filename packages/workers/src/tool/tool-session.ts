import { TreadleError } from "@treadle/contracts";
import type { WorkerGroup } from "@treadle/runtime";
import type { ToolCall, ToolReport, ToolResult } from "./items.ts";
import type { ToolWorker } from "./tool-worker.ts";

type Waiting = { readonly resolve: (result: ToolResult) => void; readonly reject: (error: unknown) => void };

/**
 * One rank's conversation with a tool worker, for the length of one of its methods. Calls made in one turn of the event
 * loop travel as one message; while some are under way, one request for answers waits at the worker.
 */
export class ToolSession {
  readonly #tool: WorkerGroup<ToolWorker>;
  readonly #owner: string;
  readonly #waiting = new Map<string, Waiting>();
  #calls: ToolCall[] = [];
  #ended: string[] = [];
  #kept: string[] = [];
  #flushes: Promise<void> | undefined;
  #isCollecting = false;
  #failure: { readonly error: unknown } | undefined;

  /** whether a trajectory's sandbox keeps what its calls left there */
  readonly isStateful: boolean;

  private constructor(tool: WorkerGroup<ToolWorker>, owner: string, isStateful: boolean) {
    this.#tool = tool;
    this.#owner = owner;
    this.isStateful = isStateful;
  }

  /** `owner` is the rank that calls, as `rollout/0`. */
  static async open(tool: WorkerGroup<ToolWorker>, owner: string): Promise<ToolSession> {
    const { isStateful } = await tool.open(owner).first();
    return new ToolSession(tool, owner, isStateful);
  }

  /** A trajectory has one call under way at a time. Rejects when the worker dies or its pool fails. */
  call(call: ToolCall): Promise<ToolResult> {
    if (this.#failure) return Promise.reject(this.#failure.error);
    return new Promise((resolve, reject) => {
      if (this.#waiting.has(call.trajectory)) {
        throw new TreadleError(
          "action.invalid",
          `trajectory '${call.trajectory}' called its tool twice at once; wait for the first answer`,
        );
      }
      this.#waiting.set(call.trajectory, { resolve, reject });
      this.#calls.push(call);
      this.#flush();
    });
  }

  /** The trajectory makes no more calls; what it holds is given back. */
  end(trajectory: string): void {
    this.#ended.push(trajectory);
    this.#flush();
  }

  /** The trajectory has no call under way, and goes on in a later session, whoever's. */
  keep(trajectory: string): void {
    this.#kept.push(trajectory);
    this.#flush();
  }

  /** Waits for what was submitted, ends every trajectory that is not kept, and says what happened. */
  async close(): Promise<ToolReport> {
    while (this.#flushes) await this.#flushes;
    if (this.#failure) throw this.#failure.error;
    const report = await this.#tool.report(this.#owner).first();
    await this.#tool.close(this.#owner);
    return report;
  }

  #flush(): void {
    this.#flushes ??= new Promise<void>((resolve) => setImmediate(resolve))
      .then(async () => {
        const [calls, ended, kept] = [this.#calls, this.#ended, this.#kept];
        this.#calls = [];
        this.#ended = [];
        this.#kept = [];
        const submitted = this.#tool.submit(this.#owner, calls, ended, kept);
        if (calls.length > 0) void this.#collect();
        await submitted;
      })
      .catch((error: unknown) => this.#fail(error))
      .finally(() => {
        this.#flushes = undefined;
        if (!this.#failure && [this.#calls, this.#ended, this.#kept].some(({ length }) => length > 0)) this.#flush();
      });
  }

  async #collect(): Promise<void> {
    if (this.#isCollecting) return;
    this.#isCollecting = true;
    try {
      while (this.#waiting.size > 0) {
        for (const result of await this.#tool.collect(this.#owner).first()) {
          this.#waiting.get(result.trajectory)?.resolve(result);
          this.#waiting.delete(result.trajectory);
        }
      }
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#isCollecting = false;
    }
  }

  #fail(error: unknown): void {
    this.#failure ??= { error };
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }
}
