/**
 * A run's end of the pool whose devices it shares: joins once, and carries what the run's lock asks for and is granted.
 *
 * Owner of: the leases and requests that the run has now. Leases end with the composition that they were granted to. What it
 * had asked for serves the next one, or goes back at once when it is granted. While nobody has the pool the run keeps what it
 * has, and waits for more; whoever has the pool next is told what that is (PD9).
 */
import {
  type DeviceLease,
  type PoolMember,
  type PoolReply,
  type PoolRequest,
  type PoolWait,
  type RuntimeConfig,
  TreadleError,
} from "@treadle/contracts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import { devicesOfThisMachine } from "./local-node.ts";

/** To the process that has the pool. */
export interface PoolLink {
  /** The run begins. */
  open?(run: string): void;
  send(request: PoolRequest): void;
  onReply(listener: (reply: PoolReply) => void): void;
  /** Told once when nobody will have the pool any more. */
  onLost(listener: (cause?: TreadleError) => void): void;
  /** Told when another process has the pool, which knows nothing of what was sent before. */
  onAgain?(listener: () => void): void;
  /** Told now and then for how long nothing has been heard. */
  onSilence?(listener: (forMs: number) => void): void;
}

/** What it needs of a composition. */
type LeasedLoop = Pick<RunnerLoop, "on" | "feed">;

const beatMs = 500;
/** Silence is told of after the first, and ends a run that waits for the pool after the second. */
const [longSilenceMs, lastSilenceMs] = [3000, 600_000];

export class PoolClient {
  readonly #link: PoolLink;
  readonly #admission: Promise<Readonly<Record<string, number>>>;
  #admit: (memoryMiB: Readonly<Record<string, number>>) => void = () => {};
  #refuse: (error: TreadleError) => void = () => {};
  readonly #beats: NodeJS.Timeout;
  #member: PoolMember | undefined;
  #memoryMiB: Readonly<Record<string, number>> | undefined;
  #loop: LeasedLoop | undefined;
  readonly #leases = new Map<number, DeviceLease>();
  /** asked for and not granted, by this composition or, orphaned, by one before */
  #pending: { readonly devices: readonly string[]; isOrphaned: boolean }[] = [];
  /** overlaps what is orphaned, and is asked for after that */
  #deferred: (readonly string[])[] = [];
  #lost: TreadleError | undefined;
  #onLost: (error: TreadleError) => void = () => {};
  #onWaits: (on: PoolWait | null, forMs: number) => void = () => {};
  #isSilent = false;
  /** which part of its steps the run has done, until it is said */
  #done: number | undefined;
  #onNotice: (text: string) => void = () => {};

  constructor(link: PoolLink) {
    this.#link = link;
    this.#admission = new Promise((resolve, reject) => {
      this.#admit = resolve;
      this.#refuse = reject;
    });
    this.#admission.catch(() => {});
    link.onReply((reply) => this.#replied(reply));
    link.onLost((cause) => this.#isLost(cause));
    link.onAgain?.(() => this.#joinAgain());
    link.onSilence?.((forMs) => this.#silent(forMs));
    this.#beats = setInterval(() => this.#beat(), beatMs);
  }

  /**
   * Resolves when the run has its part of every device. Rejects with `pool.refused`, `pool.ended`, `pool.lost`, and
   * `run.stopped` when `stop` comes first.
   */
  async join({ cluster, pool }: RuntimeConfig, runId: string, stop?: AbortSignal): Promise<void> {
    if (cluster.nats !== undefined) {
      const message = "a run that shares the devices of this machine has no node agents; leave out 'cluster.nats'";
      throw new TreadleError("pool.refused", message);
    }
    if (this.#member === undefined) {
      const devices = devicesOfThisMachine(cluster).map(({ id, memoryBytes }) => ({
        id,
        memoryMiB: memoryBytes / 2 ** 20,
      }));
      this.#member = { ...pool, devices };
      this.#link.open?.(runId);
      this.#link.send({ type: "join", member: this.#member });
    }
    const stopped = () => this.#refuse(new TreadleError("run.stopped", "the run was stopped while it waited for room"));
    if (stop?.aborted) stopped();
    stop?.addEventListener("abort", stopped, { once: true });
    this.#memoryMiB = await this.#admission.finally(() => stop?.removeEventListener("abort", stopped));
  }

  /** The run's part of each device, once it has joined. */
  get memoryMiB(): Readonly<Record<string, number>> | undefined {
    return this.#memoryMiB;
  }

  /** Told once when nobody grants anything any more. */
  onLost(listener: (error: TreadleError) => void): void {
    this.#onLost = listener;
    if (this.#lost) listener(this.#lost);
  }

  /** Told now and then while the run waits for others, and once with null when it does not any more. */
  onWaits(listener: (on: PoolWait | null, forMs: number) => void): void {
    this.#onWaits = listener;
  }

  /** Told what the user should know of the pool. */
  onNotice(listener: (text: string) => void): void {
    this.#onNotice = listener;
  }

  /** Which part of its steps the run has done. */
  progress(done: number): void {
    this.#done = done;
  }

  /** From now on this is what asks for devices. */
  serve(loop: LeasedLoop): void {
    this.#loop = loop;
    loop.on("ask-lease", ({ devices }) => this.#ask(devices));
    loop.on("release-lease", ({ token }) => this.#release(token));
  }

  /** Nothing of it computes any more. What is granted to it from here on goes back at once. */
  leave(loop: LeasedLoop): void {
    if (this.#loop !== loop) return;
    this.#loop = undefined;
    for (const token of [...this.#leases.keys()]) this.#release(token);
    for (const pending of this.#pending) pending.isOrphaned = true;
    this.#deferred = [];
  }

  close(): void {
    clearInterval(this.#beats);
  }

  #beat(): void {
    if (this.#member === undefined) return;
    this.#link.send(this.#done === undefined ? { type: "beat" } : { type: "beat", done: this.#done });
    this.#done = undefined;
  }

  #ask(devices: readonly string[]): void {
    const orphans = this.#pending.filter(({ isOrphaned }) => isOrphaned);
    const same = orphans.find((orphan) => isSameSet(orphan.devices, devices));
    if (same) same.isOrphaned = false;
    else if (orphans.some((orphan) => orphan.devices.some((device) => devices.includes(device))))
      this.#deferred.push(devices);
    else {
      this.#pending.push({ devices, isOrphaned: false });
      this.#link.send({ type: "request", devices: [...devices] });
    }
  }

  #granted(lease: DeviceLease): void {
    this.#leases.set(lease.token, lease);
    const pending = this.#pending.find(({ devices }) => isSameSet(devices, lease.devices));
    this.#pending = this.#pending.filter((each) => each !== pending);
    if (this.#loop && pending?.isOrphaned === false) this.#loop.feed({ type: "leased", lease });
    else this.#release(lease.token);
    const deferred = this.#deferred;
    this.#deferred = [];
    for (const devices of deferred) this.#ask(devices);
  }

  #release(token: number): void {
    this.#leases.delete(token);
    this.#link.send({ type: "release", token });
  }

  #replied(reply: PoolReply): void {
    switch (reply.type) {
      case "admitted":
        this.#admit(reply.memoryMiB);
        return;
      case "refused":
        this.#refuse(new TreadleError("pool.refused", reply.why));
        return;
      case "ended":
        this.#isLost(new TreadleError("pool.ended", `${reply.why}; go on with it by 'treadle resume'`));
        return;
      case "granted":
        this.#granted(reply.lease);
        return;
      case "wanted":
        this.#loop?.feed({ type: "lease-wanted", token: reply.token, drains: reply.drains });
        return;
      case "waits":
        this.#onWaits(reply.on, reply.forMs);
        return;
    }
  }

  /** PD9. What nobody asks for any more is not asked for again. */
  #joinAgain(): void {
    if (this.#member === undefined) return;
    this.#link.send({ type: "join", member: this.#member, leases: [...this.#leases.values()] });
    this.#pending = this.#pending.filter(({ isOrphaned }) => !isOrphaned);
    for (const { devices } of this.#pending) this.#link.send({ type: "request", devices: [...devices] });
    for (const devices of this.#deferred.splice(0)) this.#ask(devices);
  }

  #silent(forMs: number): void {
    const isSilent = forMs >= longSilenceMs;
    if (isSilent !== this.#isSilent) {
      this.#isSilent = isSilent;
      this.#onNotice(
        isSilent
          ? "the pool does not answer: the run goes on with the devices that it has, and waits for others; start it again with 'treadle pool start'"
          : "the pool answers again",
      );
    }
    const isAwaited = this.#pending.length > 0 || this.#memoryMiB === undefined;
    if (forMs < lastSilenceMs || !isAwaited) return;
    const message = `the pool has not answered for ${lastSilenceMs / 1000} s, and the run waits for devices; go on with it by 'treadle resume'`;
    this.#isLost(new TreadleError("pool.lost", message));
  }

  #isLost(
    cause: TreadleError = new TreadleError(
      "pool.lost",
      "the process that shares devices among this run and others is gone; go on with this one alone by 'treadle resume'",
    ),
  ): void {
    if (this.#lost) return;
    this.#lost = cause;
    this.#refuse(this.#lost);
    this.#onLost(this.#lost);
  }
}

const isSameSet = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((each) => b.includes(each));
