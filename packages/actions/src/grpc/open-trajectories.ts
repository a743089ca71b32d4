/**
 * The trajectories that clients have opened, by what they are called behind the door.
 *
 * GS5 a trajectory that no call has used for `idleMs` is closed: its client may have died without a word.
 * GS6 one that is being closed counts for its tenant until nothing of it is left, and is opened again only then.
 */
import { performance } from "node:perf_hooks";
import type { CommandActions } from "../pool/command-actions.ts";

/** `calls` use it now; when there are none, none has since `lastMs` */
export type OpenTrajectory = {
  readonly tenant: string;
  readonly id: string;
  readonly idempotencyKey: string;
  /** by the names of open sessions */
  readonly sessionKeys: Map<string, string>;
  calls: number;
  lastMs: number;
};

export class OpenTrajectories {
  readonly #actions: CommandActions;
  readonly #open = new Map<string, OpenTrajectory>();
  readonly #closing = new Set<OpenTrajectory>();

  constructor(actions: CommandActions) {
    this.#actions = actions;
  }

  get(id: string): OpenTrajectory | undefined {
    return this.#open.get(id);
  }

  /** Those that are being closed, too. */
  *all(): Iterable<OpenTrajectory> {
    yield* this.#open.values();
    yield* this.#closing;
  }

  add({ id, ...owned }: Pick<OpenTrajectory, "id" | "tenant" | "idempotencyKey">): void {
    this.#open.set(id, { ...owned, id, sessionKeys: new Map(), calls: 0, lastMs: performance.now() });
  }

  /** GS5 */
  async using<Result>(owned: OpenTrajectory, run: Promise<Result>): Promise<Result> {
    owned.calls++;
    try {
      return await run;
    } finally {
      owned.calls--;
      owned.lastMs = performance.now();
    }
  }

  /** GS6 */
  async close(owned: OpenTrajectory): Promise<void> {
    this.#open.delete(owned.id);
    this.#closing.add(owned);
    try {
      await this.#actions.closeTrajectory(owned.id);
    } finally {
      this.#closing.delete(owned);
    }
  }

  /** GS5 */
  closeIdle(idleMs: number): void {
    for (const owned of this.#open.values())
      if (owned.calls === 0 && performance.now() - owned.lastMs >= idleMs) this.close(owned).catch(() => {});
  }

  closeAll(): Promise<void>[] {
    return [...this.#open.values()].map((owned) => this.close(owned));
  }
}
