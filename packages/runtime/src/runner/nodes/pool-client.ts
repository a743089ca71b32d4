/**
 * A run's end of the pool whose devices it shares: joins once, and carries what the run's lock asks for and is granted.
 *
 * Owner of: the lease that the run has now, which ends with the composition that it was granted to.
 */
import {
  type DeviceLease,
  type PoolReply,
  type PoolRequest,
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

const beatMs = 500;

export class PoolClient {
  readonly #link: PoolLink;
  readonly #admission: Promise<Readonly<Record<string, number>>>;
  #admit: (memoryMiB: Readonly<Record<string, number>>) => void = () => {};
  #refuse: (error: TreadleError) => void = () => {};
  readonly #beats: NodeJS.Timeout;
  #hasJoined = false;
  #memoryMiB: Readonly<Record<string, number>> | undefined;
  #loop: RunnerLoop | undefined;
  #lease: DeviceLease | undefined;
  #lost: TreadleError | undefined;
  #onLost: (error: TreadleError) => void = () => {};

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

  /** From now on this is what asks for devices. */
  serve(loop: RunnerLoop): void {
    this.#loop = loop;
    loop.on("ask-lease", ({ devices }) => this.#link.send({ type: "request", devices: [...devices] }));
    loop.on("release-lease", ({ token }) => this.#release(token));
  }

  /** Nothing of it computes any more. What is granted to it from here on goes back at once. */
  leave(loop: RunnerLoop): void {
    if (this.#loop !== loop) return;
    this.#loop = undefined;
    if (this.#lease) this.#release(this.#lease.token);
  }

  close(): void {
    clearInterval(this.#beats);
  }

  #release(token: number): void {
    this.#lease = undefined;
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
        this.#lease = reply.lease;
        if (this.#loop) this.#loop.feed({ type: "leased", lease: reply.lease });
        else this.#release(reply.lease.token);
        return;
      case "wanted":
        this.#loop?.feed({ type: "lease-wanted", token: reply.token, drains: reply.drains });
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
