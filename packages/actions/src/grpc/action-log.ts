/**
 * All that a client was told of an action, for a client that lost its call and repeats it: every call that follows a log gets
 * it from the beginning, as fast as it reads.
 *
 * IK2 calls that follow one action get the same events, in order, each once, and the same end.
 */
import type * as grpc from "@grpc/grpc-js";
import type { DiskBudget, EventSink, Stream } from "./output-spool.ts";
import { SpoolFile } from "./spool-file.ts";

export type FollowingCall = EventSink & { emit(event: "error", error: Partial<grpc.ServiceError>): unknown };

type Entry = { readonly event: object } | { readonly stream: Stream; readonly at: number; readonly bytes: number };
type Follower = { readonly call: FollowingCall; next: number; isFull: boolean };

/** Output up to this size stays in memory: most actions print little, and a file for each would need many descriptors. */
const inMemoryBytes = 16_384;

export class ActionLog {
  readonly #budget: DiskBudget;
  readonly #entries: Entry[] = [];
  readonly #followers = new Set<Follower>();
  #file: SpoolFile | undefined;
  #keptBytes = 0;
  #end: { readonly error: Partial<grpc.ServiceError> | undefined } | undefined;

  constructor(budget: DiskBudget) {
    this.#budget = budget;
  }

  get hasEnded(): boolean {
    return this.#end !== undefined;
  }

  get keptBytes(): number {
    return this.#keptBytes;
  }

  get numFollowers(): number {
    return this.#followers.size;
  }

  /** False when the budget is used up, or the disk is full. */
  give(stream: Stream, chunk: Buffer): boolean {
    if (this.#end !== undefined) return true;
    if (!this.#budget.take(chunk.length)) return false;
    if (this.#keptBytes + chunk.length <= inMemoryBytes) this.#entries.push({ event: { output: { [stream]: chunk } } });
    else {
      this.#file ??= SpoolFile.open();
      const at = this.#file?.bytes ?? 0;
      if (!this.#file?.append(chunk)) {
        this.#budget.give(chunk.length);
        return false;
      }
      this.#entries.push({ stream, at, bytes: chunk.length });
    }
    this.#keptBytes += chunk.length;
    this.#write();
    return true;
  }

  tell(event: object): void {
    this.#entries.push({ event });
    this.#write();
  }

  /** Nothing comes after it: every call that follows ends so. */
  end(error?: Partial<grpc.ServiceError>): void {
    this.#end ??= { error };
    this.#write();
  }

  /** Returns what makes the call follow no more. */
  follow(call: FollowingCall): () => void {
    const follower: Follower = { call, next: 0, isFull: false };
    this.#followers.add(follower);
    call.on("drain", () => {
      follower.isFull = false;
      this.#writeTo(follower);
    });
    this.#writeTo(follower);
    return () => {
      this.#followers.delete(follower);
    };
  }

  /** Its file is gone, and its budget has its bytes back; nobody may follow it then. */
  forget(): void {
    this.#followers.clear();
    this.#entries.length = 0;
    this.#budget.give(this.#keptBytes);
    this.#keptBytes = 0;
    this.#file?.close();
    this.#file = undefined;
  }

  #write(): void {
    for (const follower of this.#followers) this.#writeTo(follower);
  }

  /** IK2 */
  #writeTo(follower: Follower): void {
    const { call } = follower;
    while (this.#followers.has(follower) && !follower.isFull && follower.next < this.#entries.length) {
      const entry = this.#entries[follower.next++]!;
      const event =
        "event" in entry ? entry.event : { output: { [entry.stream]: this.#file!.read(entry.at, entry.bytes) } };
      follower.isFull = !call.write(event);
    }
    if (this.#end === undefined || follower.next < this.#entries.length || !this.#followers.delete(follower)) return;
    if (this.#end.error === undefined) call.end();
    else call.emit("error", this.#end.error);
  }
}
