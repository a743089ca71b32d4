/** The runner's end of a rank: its present process, the link to it, and the callers that wait until it is reachable or ready. */
import type { Peer, ReachableMessage } from "@treadle/contracts";
import type { LaunchedWorker } from "../nodes/remote-worker.ts";

type Waiter = { readonly resolve: () => void; readonly reject: (error: unknown) => void };

export class WorkerEnd {
  readonly worker: string;
  incarnation: number;
  process: LaunchedWorker | undefined;
  /** the link of the present process, from the moment that it can be reached, before it is set up and ready for calls */
  peer: Peer | undefined;
  pid: number | undefined;
  addresses: readonly string[] = [];
  /** how the present process reaches the runner */
  route: "direct" | "nats" | undefined;
  #isUp = false;
  #failure: { readonly error: unknown } | undefined;
  readonly #waiting: Waiter[] = [];
  readonly #seeking: Waiter[] = [];

  constructor(worker: string, incarnation: number) {
    this.worker = worker;
    this.incarnation = incarnation;
  }

  get isUp(): boolean {
    return this.#isUp;
  }

  /** Resolves when a process is ready; waits while it starts or restarts. */
  ready(): Promise<void> {
    if (this.#failure) return Promise.reject(this.#failure.error);
    if (this.#isUp) return Promise.resolve();
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  /** Resolves when a process takes messages; waits while it starts or restarts. */
  reachable(): Promise<void> {
    if (this.#failure) return Promise.reject(this.#failure.error);
    if (this.peer) return Promise.resolve();
    return new Promise((resolve, reject) => this.#seeking.push({ resolve, reject }));
  }

  reached(peer: Peer, at: ReachableMessage): void {
    Object.assign(this, { peer, addresses: at.addresses, route: at.route, pid: at.pid });
    for (const { resolve } of this.#seeking.splice(0)) resolve();
  }

  up(): void {
    this.#isUp = true;
    for (const { resolve } of this.#waiting.splice(0)) resolve();
  }

  /** What the process may still send must not count for the next one. */
  discard(incarnation: number, why: Error): void {
    void this.peer?.link.close(why).catch(() => {});
    this.process?.end();
    Object.assign(this, {
      incarnation,
      process: undefined,
      peer: undefined,
      pid: undefined,
      addresses: [],
      route: undefined,
    });
    this.#isUp = false;
  }

  /** Nothing more will come of this rank. A process that is up stays so: it can still be stopped in order. */
  fail(error: unknown): void {
    this.#failure ??= { error };
    for (const { reject } of [...this.#waiting.splice(0), ...this.#seeking.splice(0)]) reject(error);
  }
}
