/**
 * A run's end of the pool whose devices it shares: joins once, and carries what the run's lock asks for and is granted.
 *
 * Owner of: the leases and requests that the run has now. Leases end with the composition that they were granted to. What it
 * had asked for serves the next one, or goes back at once when it is granted.
 */
import {
  type DeviceLease,
  type PoolReply,
  type PoolRequest,
  type PoolWait,
  type RuntimeConfig,
  TreadleError,
} from "@treadle/contracts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import { devicesOfThisMachine } from "./local-node.ts";

/** To the process that has the pool. */
export type PoolLink = {
  readonly send: (request: PoolRequest) => void;
  readonly onReply: (listener: (reply: PoolReply) => void) => void;
  readonly onLost: (listener: () => void) => void;
};

/** What it needs of a composition. */
type LeasedLoop = Pick<RunnerLoop, "on" | "feed">;

const beatMs = 500;

export class PoolClient {
  readonly #link: PoolLink;
  readonly #admission: Promise<Readonly<Record<string, number>>>;
  #admit: (memoryMiB: Readonly<Record<string, number>>) => void = () => {};
  #refuse: (error: TreadleError) => void = () => {};
  readonly #beats: NodeJS.Timeout;
  #hasJoined = false;
  #memoryMiB: Readonly<Record<string, number>> | undefined;
  #loop: LeasedLoop | undefined;
  readonly #tokens = new Set<number>();
  /** asked for and not granted, by this composition or, orphaned, by one before */
  #pending: { readonly devices: readonly string[]; isOrphaned: boolean }[] = [];
  /** overlaps what is orphaned, and is asked for after that */
  #deferred: (readonly string[])[] = [];
  #lost: TreadleError | undefined;
  #onLost: (error: TreadleError) => void = () => {};
  #onWaits: (on: PoolWait | null, forMs: number) => void = () => {};

  constructor(link: PoolLink) {
    this.#link = link;
    this.#admission = new Promise((resolve, reject) => {
      this.#admit = resolve;
      this.#refuse = reject;
    });
    this.#admission.catch(() => {});
    link.onReply((reply) => this.#replied(reply));
    link.onLost(() => this.#isLost());
    this.#beats = setInterval(() => this.#hasJoined && link.send({ type: "beat" }), beatMs);
  }

  /** Resolves when the run has its part of every device; rejects with `pool.refused` and `pool.lost`. */
  async join({ cluster, pool }: RuntimeConfig): Promise<void> {
    if (cluster.nats !== undefined) {
      const message = "a run that shares the devices of this machine has no node agents; leave out 'cluster.nats'";
      throw new TreadleError("pool.refused", message);
    }
    if (!this.#hasJoined) {
      const devices = devicesOfThisMachine(cluster).map(({ id, memoryBytes }) => ({
        id,
        memoryMiB: memoryBytes / 2 ** 20,
      }));
      this.#link.send({ type: "join", member: { ...pool, devices } });
      this.#hasJoined = true;
    }
    this.#memoryMiB = await this.#admission;
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
    for (const token of [...this.#tokens]) this.#release(token);
    for (const pending of this.#pending) pending.isOrphaned = true;
    this.#deferred = [];
  }

  close(): void {
    clearInterval(this.#beats);
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
    this.#tokens.add(lease.token);
    const pending = this.#pending.find(({ devices }) => isSameSet(devices, lease.devices));
    this.#pending = this.#pending.filter((each) => each !== pending);
    if (this.#loop && pending?.isOrphaned === false) this.#loop.feed({ type: "leased", lease });
    else this.#release(lease.token);
    const deferred = this.#deferred;
    this.#deferred = [];
    for (const devices of deferred) this.#ask(devices);
  }

  #release(token: number): void {
    this.#tokens.delete(token);
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

  #isLost(): void {
    this.#lost = new TreadleError(
      "pool.lost",
      "the process that shares devices among this run and others is gone; go on with this one alone by 'treadle resume'",
    );
    this.#refuse(this.#lost);
    this.#onLost(this.#lost);
  }
}

const isSameSet = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((each) => b.includes(each));
