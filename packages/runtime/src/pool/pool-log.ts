/**
 * What a pool that outlives runs keeps of itself: which processes have had it, one after the other, and which runs it has
 * admitted.
 *
 * The epoch of a process is the time of its opening, in seconds, or one more than the last epoch of the record where that is
 * larger. So it is larger than those before it also where the record has lost them, as long as clocks go on.
 */
import { PoolMember, type RunLog, RunName, RunProcess, TreadleError } from "@treadle/contracts";
import { z } from "zod";

const Admitted = z.strictObject({
  type: z.literal("admitted"),
  run: RunName,
  process: RunProcess,
  member: PoolMember,
  memoryMiB: z.record(z.string(), z.number().positive()),
});
export type Admitted = z.infer<typeof Admitted>;

const PoolEntry = z.discriminatedUnion("type", [
  /** a process has the pool from here on */
  z.strictObject({
    type: z.literal("opened"),
    host: z.string(),
    pid: z.int(),
    at: z.iso.datetime(),
    epoch: z.int().positive(),
  }),
  Admitted,
  /** it is about to be ended */
  z.strictObject({ type: z.literal("ends"), run: RunName, why: z.string() }),
  /** nothing of it is left */
  z.strictObject({ type: z.literal("gone"), run: RunName }),
]);
type PoolEntry = z.infer<typeof PoolEntry>;
type Opened = Omit<Extract<PoolEntry, { type: "opened" }>, "type" | "epoch">;

export class PoolLog {
  readonly #log: RunLog;
  readonly #pool: string;
  /** by run, those of which something may be left */
  readonly admitted: ReadonlyMap<string, Admitted>;
  /** of those, why the pool has decided to end them */
  readonly ends: ReadonlyMap<string, string>;
  /** of this process */
  readonly epoch: number;
  #last: Promise<unknown> = Promise.resolve();

  private constructor(log: RunLog, pool: string, before: readonly PoolEntry[], nowMs: number) {
    this.#log = log;
    this.#pool = pool;
    const [admitted, ends] = [new Map<string, Admitted>(), new Map<string, string>()];
    let epoch = 0;
    for (const entry of before) {
      if (entry.type === "opened") epoch = Math.max(epoch, entry.epoch);
      else if (entry.type === "ends") ends.set(entry.run, entry.why);
      else {
        ends.delete(entry.run);
        if (entry.type === "admitted") admitted.set(entry.run, entry);
        else admitted.delete(entry.run);
      }
    }
    [this.admitted, this.ends] = [admitted, ends];
    this.epoch = Math.max(epoch + 1, Math.floor(nowMs / 1000));
  }

  /**
   * `log` has been taken; `mayBeOurs` says what keeps this process from having those that it has admitted. Rejects with
   * `journal.corrupt`, with what `mayBeOurs` throws, which leaves the record as it was, and as `append` does.
   */
  static async open(
    log: RunLog,
    pool: string,
    opened: Opened,
    mayBeOurs: (admitted: Admitted) => void = () => {},
  ): Promise<PoolLog> {
    const before = log.entries.map((entry, number) => read(entry, number, pool));
    const opening = new PoolLog(log, pool, before, Date.parse(opened.at));
    for (const admitted of opening.admitted.values()) mayBeOurs(admitted);
    await opening.append({ type: "opened", ...opened, epoch: opening.epoch });
    return opening;
  }

  /**
   * Resolves when it is in the log, after all that was given before; from the first that cannot be, none is.
   * Rejects with `pool.taken` and `pool.lost`.
   */
  append(entry: PoolEntry): Promise<void> {
    const appended = this.#last
      .then(() => this.#log.append(JSON.stringify(entry)))
      .catch((cause: Error) => this.#fail(cause));
    this.#last = appended;
    appended.catch(() => {});
    return appended;
  }

  close(): Promise<void> {
    return this.#log.close();
  }

  #fail(cause: Error): never {
    const { code } = cause as TreadleError;
    if (code === "pool.taken" || code === "pool.lost") throw cause;
    if (code === "run.locked")
      throw new TreadleError("pool.taken", `another process has pool '${this.#pool}' now; runs follow that one`, {
        cause,
      });
    const message = `the record of pool '${this.#pool}' cannot be kept: ${cause.message}; see to the NATS servers, then start it again: its runs keep what they have`;
    throw new TreadleError("pool.lost", message, { cause });
  }
}

function read(text: string, number: number, pool: string): PoolEntry {
  try {
    return PoolEntry.parse(JSON.parse(text));
  } catch (cause) {
    const message = `entry ${number} of the record of pool '${pool}' is none: ${(cause as Error).message}; when no run of it is left, remove the record with 'treadle runs --nats … --forget pool-${pool}'`;
    throw new TreadleError("journal.corrupt", message, { cause });
  }
}
