/**
 * The snapshots of every tenant, by name.
 *
 * SN3 what a tenant's snapshots take never exceeds its limits: each is given what is left, and no two are taken at once.
 * SN4 a snapshot from which no trajectory is open, and that no call has named for so long, is dropped: its client may have died
 *    without a word.
 */
import { performance } from "node:perf_hooks";
import * as grpc from "@grpc/grpc-js";
import type { TrajectorySnapshot } from "../pool/trajectory-snapshot.ts";
import { StatusError } from "./status.ts";

export type SnapshotLimits = { readonly count: number; readonly bytes: number; readonly idleMs: number | undefined };

type Kept = {
  readonly tenant: string;
  readonly idempotencyKey: string;
  readonly taken: Promise<TrajectorySnapshot>;
  /** once it is there */
  snapshot: TrajectorySnapshot | undefined;
  lastMs: number;
};

export class Snapshots {
  readonly #limits: SnapshotLimits;
  readonly #kept = new Map<string, Kept>();
  /** of each tenant, the last that is taken (SN3) */
  readonly #taking = new Map<string, Promise<unknown>>();

  constructor(limits: SnapshotLimits) {
    this.#limits = limits;
  }

  /** `name` is its tenant's own. A repeat with the same key gets what the first took. Throws what `take` throws. */
  async take(
    { tenant, name, shown, idempotencyKey }: { tenant: string; name: string; shown: string; idempotencyKey: string },
    take: (maxBytes: number) => Promise<TrajectorySnapshot>,
  ): Promise<TrajectorySnapshot> {
    const known = this.#kept.get(name);
    if (known !== undefined) {
      if (idempotencyKey !== "" && known.idempotencyKey === idempotencyKey) return known.taken;
      throw new StatusError(
        grpc.status.ALREADY_EXISTS,
        `snapshot '${shown}' is there already; choose another name, or drop it`,
      );
    }
    const own = (): Kept[] => [...this.#kept.values()].filter((one) => one.tenant === tenant);
    const { count, bytes } = this.#limits;
    if (own().length >= count)
      throw new StatusError(
        grpc.status.RESOURCE_EXHAUSTED,
        `tenant '${tenant}' has ${count} snapshots already, which is its limit; drop some, or raise limits.snapshots`,
      );
    const turn = this.#taking.get(tenant) ?? Promise.resolve();
    const taken = turn.then(() => take(bytes - own().reduce((sum, one) => sum + (one.snapshot?.bytes ?? 0), 0)));
    const kept: Kept = { tenant, idempotencyKey, taken, snapshot: undefined, lastMs: performance.now() };
    this.#kept.set(name, kept);
    const settled = taken.then(
      (snapshot) => {
        kept.snapshot = snapshot;
        kept.lastMs = performance.now();
        // Dropped meanwhile.
        if (this.#kept.get(name) !== kept) void snapshot.drop();
      },
      () => {
        if (this.#kept.get(name) === kept) this.#kept.delete(name);
      },
    );
    this.#taking.set(tenant, settled);
    void settled.then(() => {
      if (this.#taking.get(tenant) === settled) this.#taking.delete(tenant);
    });
    await settled;
    return taken;
  }

  /** Throws NOT_FOUND; `shown` is its name as its tenant gave it. */
  find(name: string, shown: string): TrajectorySnapshot {
    const kept = this.#kept.get(name);
    if (kept?.snapshot === undefined)
      throw new StatusError(
        grpc.status.NOT_FOUND,
        `snapshot '${shown}' is not there: it was dropped, never taken, or not used for too long; take another`,
      );
    const { loss } = kept.snapshot.content.files;
    if (loss !== undefined) {
      this.#kept.delete(name);
      void kept.snapshot.drop().catch(() => {});
      throw new StatusError(grpc.status.DATA_LOSS, `snapshot '${shown}' is gone: ${loss}; take another`);
    }
    kept.lastMs = performance.now();
    return kept.snapshot;
  }

  async drop(name: string, shown: string): Promise<void> {
    const snapshot = this.find(name, shown);
    this.#kept.delete(name);
    await snapshot.drop();
  }

  /** SN4 */
  dropIdle(): void {
    const { idleMs } = this.#limits;
    for (const [name, { snapshot, lastMs }] of this.#kept) {
      if (snapshot === undefined) continue;
      const isIdle = idleMs !== undefined && performance.now() - lastMs >= idleMs && snapshot.numUsers === 0;
      if (!isIdle && snapshot.content.files.loss === undefined) continue;
      this.#kept.delete(name);
      void snapshot.drop().catch(() => {});
    }
  }

  async close(): Promise<void> {
    const kept = [...this.#kept.values()];
    this.#kept.clear();
    await Promise.allSettled(kept.map(async ({ taken }) => (await taken).drop()));
  }
}
