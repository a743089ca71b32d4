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
  type Work,
  type WorkDone,
} from "@treadle/contracts";
import { leaseInput, leaseRequest } from "@treadle/core";
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
  /** by lease, what other runs compute on its devices */
  readonly #beside = new Map<number, readonly Work[]>();
  #onBeside: (devices: readonly string[]) => void = () => {};
  #nameOf: (component: string) => Work = (component) => component;
  readonly #works = new Map<string, Work>();
  /** asked for and not granted, by this composition or, orphaned, by one before */
  #pending: (Asked & { isOrphaned: boolean })[] = [];
  /** overlaps what is orphaned, and is asked for after that */
  #deferred: Asked[] = [];
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

  /** From now on this is what asks for devices. `nameOf`: as which all runs know a component. */
  serve(loop: LeasedLoop, nameOf: (component: string) => Work = (component) => component): void {
    this.#loop = loop;
    this.#nameOf = nameOf;
    this.#works.clear();
    loop.on("ask-lease", ({ devices, component }) => this.#ask({ devices, work: this.#workOf(component) }));
    loop.on("release-lease", ({ token }) => this.#release(token));
    for (const type of ["use-lease", "share-lease"] as const)
      loop.on(type, (effect) => {
        const request = leaseRequest(effect, (component) => this.#workOf(component));
        if (request.type === "shares" && request.work !== null) this.#restrict(request.token, request.work);
        if (this.#isSharing) this.#link.send(request);
      });
  }

  /** What computes on these devices in other runs; undefined where none ever does. */
  besideOn(devices: readonly string[]): Work[] | undefined {
    if (!this.#isSharing) return undefined;
    const on = [...this.#leases.values()].filter((lease) => lease.devices.some((device) => devices.includes(device)));
    return [...new Set(on.flatMap(({ token }) => this.#beside.get(token) ?? []))];
  }

  /** Told on which devices that has changed. */
  onBeside(listener: (devices: readonly string[]) => void): void {
    this.#onBeside = listener;
  }

  /** What a rank of a component has computed on its devices. */
  worked(component: string, devices: readonly string[], done: WorkDone): void {
    if (!this.#isSharing || this.#loop === undefined) return;
    this.#link.send({ type: "worked", ...done, work: this.#workOf(component), devices: [...devices] });
  }

  #workOf(component: string): Work {
    const work = this.#works.get(component) ?? this.#nameOf(component);
    this.#works.set(component, work);
    return work;
  }

  get #isSharing(): boolean {
    return this.#member?.share === "always";
  }

  #restrict(token: number, only: Work | undefined): void {
    const lease = this.#leases.get(token);
    if (lease) this.#leases.set(token, { token, devices: lease.devices, ...(only === undefined ? {} : { only }) });
  }

  #besideChanged(token: number, works: readonly Work[]): void {
    const lease = this.#leases.get(token);
    if (lease === undefined) return;
    if (works.length === 0) this.#restrict(token, undefined);
    this.#beside.set(token, works);
    this.#onBeside(lease.devices);
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

  #ask(asked: Asked): void {
    const { devices, work } = asked;
    const orphans = this.#pending.filter(({ isOrphaned }) => isOrphaned);
    const same = orphans.find((orphan) => isSameSet(orphan.devices, devices) && orphan.work === work);
    if (same) same.isOrphaned = false;
    else if (orphans.some((orphan) => orphan.devices.some((device) => devices.includes(device))))
      this.#deferred.push(asked);
    else {
      this.#pending.push({ devices, work, isOrphaned: false });
      this.#request(asked);
    }
  }

  #request({ devices, work }: Asked): void {
    this.#link.send({ type: "request", devices: [...devices], ...(this.#isSharing ? { work } : {}) });
  }

  #granted(lease: DeviceLease): void {
    this.#leases.set(lease.token, lease);
    const pending = this.#pending.find(({ devices }) => isSameSet(devices, lease.devices));
    this.#pending = this.#pending.filter((each) => each !== pending);
    if (this.#loop && pending?.isOrphaned === false) this.#loop.feed({ type: "leased", lease });
    else this.#release(lease.token);
    const deferred = this.#deferred;
    this.#deferred = [];
    for (const asked of deferred) this.#ask(asked);
  }

  #release(token: number): void {
    const lease = this.#leases.get(token);
    this.#leases.delete(token);
    if (this.#beside.delete(token) && lease) this.#onBeside(lease.devices);
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
      case "beside":
        this.#besideChanged(reply.token, reply.works);
        this.#feed(reply);
        return;
      case "wanted":
      case "share":
        this.#feed(reply);
        return;
      case "waits":
        this.#onWaits(reply.on, reply.forMs);
        return;
    }
  }

  #feed(reply: PoolReply): void {
    const input = leaseInput(reply);
    if (input) this.#loop?.feed(input);
  }

  /** PD9. What nobody asks for any more is not asked for again. */
  #joinAgain(): void {
    if (this.#member === undefined) return;
    this.#link.send({ type: "join", member: this.#member, leases: [...this.#leases.values()] });
    this.#pending = this.#pending.filter(({ isOrphaned }) => !isOrphaned);
    for (const pending of this.#pending) this.#request(pending);
    for (const asked of this.#deferred.splice(0)) this.#ask(asked);
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

type Asked = { readonly devices: readonly string[]; readonly work: Work };

const isSameSet = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((each) => b.includes(each));
