/**
 * A run's way to a pool that outlives runs: the same words as to a parent process, over the control plane.
 *
 * Owner of: which process has the pool now, and what was said to it and not heard. A question of the run is under way all the
 * time, which the pool answers when it has something to say; what the run says goes at once, in one of its own.
 */
import { setTimeout as delay } from "node:timers/promises";
import {
  ask,
  type ControlPlane,
  type PoolReply,
  type PoolRequest,
  type RunProcess,
  TreadleError,
} from "@treadle/contracts";
import type { PoolLink } from "../runner/nodes/pool-client.ts";
import { Exchange, type Exchanged } from "./exchange.ts";
import { type PresentPool, poolsAt } from "./open-pool.ts";

export type PlanePoolLinkOptions = {
  /** closed with the link */
  readonly plane: ControlPlane;
  /** of the pool */
  readonly name: string;
  readonly process: RunProcess;
};

type Said = Exchange<PoolRequest, PoolReply>;

const timeoutMs = 5000;
const retryMs = 300;
/** What no further try changes. */
const isFinal = ({ code }: TreadleError): boolean =>
  code === "pool.refused" || code === "control-plane.untrusted" || code === "link.protocol";

export class PlanePoolLink implements PoolLink {
  readonly #options: PlanePoolLinkOptions;
  #run = "";
  #exchange: Said = new Exchange();
  /** of the process that it follows (PS4) */
  #followed = { epoch: 0, id: "" };
  #saying = false;
  #isClosed = false;
  #heardMs = performance.now();
  #onReply: (reply: PoolReply) => void = () => {};
  #onLost: (cause: TreadleError) => void = () => {};
  #onAgain: () => void = () => {};
  #onSilence: (forMs: number) => void = () => {};

  constructor(options: PlanePoolLinkOptions) {
    this.#options = options;
  }

  open(run: string): void {
    this.#run = run;
    this.#heardMs = performance.now();
    void this.#listen();
  }

  send(request: PoolRequest): void {
    if (request.type === "beat" && request.done === undefined) return; // every question is one
    this.#exchange.say(request);
    void this.#say();
  }

  onReply(listener: (reply: PoolReply) => void): void {
    this.#onReply = listener;
  }

  onLost(listener: (cause: TreadleError) => void): void {
    this.#onLost = listener;
  }

  onAgain(listener: () => void): void {
    this.#onAgain = listener;
  }

  onSilence(listener: (forMs: number) => void): void {
    this.#onSilence = listener;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#options.plane.close();
  }

  async #listen(): Promise<void> {
    while (!this.#isClosed) {
      if (await this.#ask(true)) continue;
      if (this.#isClosed) return;
      this.#onSilence(performance.now() - this.#heardMs);
      await delay(retryMs);
    }
  }

  /** At once; what is said meanwhile goes with the next. What fails is said by the question that follows. */
  async #say(): Promise<void> {
    if (this.#saying || this.#run === "") return;
    this.#saying = true;
    while (!this.#isClosed && this.#exchange.isOpen && (await this.#ask(false)));
    this.#saying = false;
  }

  /** False when nobody has answered. */
  async #ask(waits: boolean): Promise<boolean> {
    const pool = this.#follow();
    if (pool === undefined) return false;
    const { plane, name, process } = this.#options;
    const exchange = this.#exchange;
    const member = { kind: "pool", name, incarnation: pool.incarnation, body: pool.info } as const;
    const { epoch, id } = this.#followed;
    const talk = { run: this.#run, process, epoch, pool: id, waits, ...exchange.message() };
    const isFollowed = () => pool.info.id === this.#followed.id;
    try {
      const told = await ask(plane, "pool", member, "talk", talk, { timeoutMs });
      if (isFollowed()) this.#hear(exchange, told);
      return true;
    } catch (error) {
      const cause = error as TreadleError;
      // Who ends a run has the pool, by its log, whichever the run follows.
      if (!this.#isClosed && (cause.code === "pool.ended" || (isFollowed() && isFinal(cause)))) {
        this.#isClosed = true;
        this.#onLost(cause);
      }
      return false;
    }
  }

  /** The process that has the pool. To one that had it before a later one that this run knows of, it is only said so (PS4). */
  #follow(): PresentPool | undefined {
    const { plane, name, process } = this.#options;
    const all = poolsAt(plane).filter((each) => each.name === name);
    // One of another machine is asked by who has followed none, and refuses it.
    const pool = all.find(({ info }) => info.machine === process.machine || this.#followed.epoch === 0);
    if (pool && pool.info.epoch > this.#followed.epoch) {
      const isAgain = this.#followed.epoch > 0;
      this.#followed = pool.info;
      if (isAgain) {
        this.#exchange = new Exchange(); // it knows nothing but what it is told from here on
        this.#onAgain();
      }
    }
    return pool;
  }

  #hear(exchange: Said, told: Exchanged<PoolReply>): void {
    if (exchange !== this.#exchange) return;
    this.#heardMs = performance.now();
    this.#onSilence(0);
    for (const reply of exchange.receive(told)) this.#onReply(reply);
  }
}

/** Rejects with `pool.refused` where no such pool is there. `name`: by default that of this machine. */
export function openPoolLink(plane: ControlPlane, process: RunProcess, name: string | undefined): PlanePoolLink {
  const all = poolsAt(plane);
  const found = all.find((pool) => (name === undefined ? pool.info.machine === process.machine : pool.name === name));
  if (found) return new PlanePoolLink({ plane, name: found.name, process });
  const there = all.map((pool) => `'${pool.name}' of '${pool.info.host}'`).join(", ") || "none";
  const wanted = name === undefined ? "no pool of this machine" : `no pool '${name}'`;
  throw new TreadleError(
    "pool.refused",
    `${wanted} is there; these are: ${there}; start one with 'treadle pool start'`,
  );
}
