/**
 * A pool of the devices of this machine that outlives the runs that share them: any run of the machine joins it over the
 * control plane. `DevicePool` decides; here are the pool's record, the processes of runs, and what is said to each.
 *
 * Owner of: the announcement of the pool, its log, what runs have not heard yet.
 *
 * - PS3 of several processes that have opened the pool's log, only the last admits runs and ends them: it does so when the log
 *   says so.
 * - PS4 a run hears nothing from a process that had the pool before one that it knows of; such a process ends as soon as it
 *   hears of the later one. A later one counts all devices of every run that is in the log as leased until that run has joined
 *   it (PD9), so what it grants no earlier one has granted to anybody, nor will.
 */
import { hostname } from "node:os";
import {
  type Announcement,
  answering,
  type ControlPlane,
  type PoolInfo,
  type PoolMember,
  type PoolReply,
  type PoolRequest,
  type PoolStatus,
  type PoolTalk,
  type RunLog,
  type RunProcess,
  TreadleError,
} from "@treadle/contracts";
import { DevicePool, type PooledRun, type PoolLimits } from "./device-pool.ts";
import { Exchange } from "./exchange.ts";
import { PoolLog } from "./pool-log.ts";

/** How the processes of runs are seen and ended. */
export type RunProcesses = {
  isThere(process: RunProcess): boolean;
  /** Resolves when nothing of it is left. */
  end(process: RunProcess): Promise<void>;
};

export type PoolServiceOptions = {
  readonly name: string;
  /** closed with the service */
  readonly plane: ControlPlane;
  /** has been taken; closed with the service */
  readonly log: RunLog;
  readonly limits: PoolLimits;
  readonly machine: string;
  readonly processes: RunProcesses;
  readonly onNotice: (text: string) => void;
};

/** Tokens that one process grants, at most: enough for a thousand a second in a month. */
const tokensAnEpoch = 2 ** 32;
const maxRuns = 1000;
/** How long a run's question is held when there is nothing to say. */
const holdMs = 1000;
const lookMs = 300;
/** From being told that it is ended, and why, until a run is killed. */
const graceMs = 2000;

/** One process of a run, from its first word, or from the log, until nothing of it is left. */
class Session {
  readonly process: RunProcess;
  readonly exchange = new Exchange<PoolReply, PoolRequest>();
  /** what it joined as, unless it was refused */
  member: PoolMember | undefined;
  /** it is in the log */
  isAdmitted = false;
  /** the pool has decided to end it */
  isEnding = false;
  gone: Promise<void> | undefined;
  #answer: () => void = () => {};

  constructor(process: RunProcess) {
    this.process = process;
  }

  /** It has joined, so that its sign of life counts. */
  get isIn(): boolean {
    return !this.isEnding && (this.isAdmitted || this.member !== undefined);
  }

  say(reply: PoolReply): void {
    this.exchange.say(reply);
    this.#answer();
  }

  /** Resolves when there is something to say, when it is asked again, or in a while. */
  async hold(): Promise<void> {
    this.#answer();
    let timer: NodeJS.Timeout | undefined;
    await new Promise<void>((resolve) => {
      this.#answer = resolve;
      timer = setTimeout(resolve, holdMs);
    });
    clearTimeout(timer);
  }
}

export class PoolService {
  readonly #options: PoolServiceOptions;
  readonly #log: PoolLog;
  readonly #pool: DevicePool;
  readonly #sessions = new Map<string, Session>();
  readonly #watch: NodeJS.Timeout;
  #announcement: Announcement | undefined;
  /** since when nothing can be heard, and for how long it was so before */
  #deafSinceMs: number | undefined;
  #deafMs = 0;
  #failure: TreadleError | undefined;
  #fail: (error: TreadleError) => void = () => {};
  /** rejects when this process has the pool no more: with `pool.taken` and `pool.lost` */
  readonly failed: Promise<never>;

  private constructor(options: PoolServiceOptions, log: PoolLog) {
    this.#options = options;
    this.#log = log;
    this.failed = new Promise((_, reject) => {
      this.#fail = (error) => {
        this.#failure ??= error;
        reject(this.#failure);
      };
    });
    this.failed.catch(() => {});
    const now = () => (this.#deafSinceMs ?? performance.now()) - this.#deafMs;
    this.#pool = new DevicePool(options.limits, now, log.epoch * tokensAnEpoch);
    for (const { run, process, member, memoryMiB } of log.admitted.values()) {
      const session = this.#open(run, process);
      session.isAdmitted = true;
      this.#pool.restore(run, this.#pooled(run, session), member, memoryMiB); // PS4
    }
    options.plane.onConnection((isConnected) => this.#hears(isConnected));
    this.#watch = setInterval(() => this.#lookAfter(), lookMs);
  }

  /** Rejects with `pool.taken`, `pool.lost`, `journal.corrupt`, and as `ControlPlane.announce` does. */
  static async open(options: PoolServiceOptions): Promise<PoolService> {
    const { name, plane, machine } = options;
    const host = hostname();
    const startedAt = new Date().toISOString();
    const opened = { host, pid: process.pid, at: startedAt };
    const log = await PoolLog.open(options.log, name, opened).catch(async (error) => {
      await options.log.close();
      await plane.close();
      throw error;
    });
    const service = new PoolService(options, log);
    try {
      const info: PoolInfo = { machine, host, pid: process.pid, startedAt, epoch: log.epoch };
      const handlers = { talk: (talk: PoolTalk) => service.#talk(talk), status: () => service.#status() };
      const announcement = await plane.announce("pool", name, info, answering("pool", handlers));
      service.#announcement = announcement;
      announcement.onReplaced(() => service.#superseded());
      return service;
    } catch (error) {
      await service.close("it could not start");
      throw error;
    }
  }

  get epoch(): number {
    return this.#log.epoch;
  }

  /** Runs keep what they have, and wait for whoever has the pool next. */
  async close(reason: string): Promise<void> {
    clearInterval(this.#watch);
    this.#pool.close();
    await this.#announcement?.withdraw(reason).catch(() => {}); // silence says the same
    await this.#log.close();
    await this.#options.plane.close();
  }

  #status(): PoolStatus {
    return { runs: [...this.#pool.view()] };
  }

  async #talk(talk: PoolTalk) {
    if (talk.epoch > this.epoch) this.#superseded(); // PS4
    if (this.#failure) throw this.#failure;
    const session = await this.#sessionOf(talk);
    const { run, waits } = talk;
    if (session.isIn) this.#pool.received(run, { type: "beat" });
    for (const request of session.exchange.receive(talk)) {
      if (request.type === "join") session.member = request.member;
      this.#pool.received(run, request);
    }
    if (waits && !session.exchange.isOpen) await session.hold();
    if (this.#failure) throw this.#failure;
    return session.exchange.message();
  }

  async #sessionOf({ run, process }: PoolTalk): Promise<Session> {
    const { machine, processes, name } = this.#options;
    const refused = (why: string) => new TreadleError("pool.refused", why);
    if (process.machine !== machine)
      throw refused(
        `pool '${name}' shares the devices of '${hostname()}', and run '${run}' is elsewhere, or in a container; start a pool there`,
      );
    let present = this.#sessions.get(run);
    if (present && present.process.mark !== process.mark) {
      if (processes.isThere(present.process))
        throw refused(`run '${run}' is in pool '${name}', by process '${present.process.pid}'; wait for its end`);
      await this.#leave(run, present);
      present = this.#sessions.get(run); // or another one was faster
    }
    if (present?.process.mark === process.mark) return present;
    if (present)
      throw refused(`run '${run}' is in pool '${name}', by process '${present.process.pid}'; wait for its end`);
    if (!processes.isThere(process))
      throw refused(`pool '${name}' cannot see process '${process.pid}' of run '${run}'; start both as the same user`);
    if (this.#sessions.size >= maxRuns)
      throw refused(`pool '${name}' has '${maxRuns}' runs, as many as it may; wait for the end of one`);
    const session = this.#open(run, process);
    this.#pool.add(run, this.#pooled(run, session));
    return session;
  }

  #open(run: string, process: RunProcess): Session {
    const session = new Session(process);
    this.#sessions.set(run, session);
    return session;
  }

  #pooled(run: string, session: Session): PooledRun {
    return {
      reply: (reply) => {
        if (reply.type === "admitted" && !session.isAdmitted) void this.#admit(run, session, reply.memoryMiB);
        else session.say(reply);
        if (reply.type === "refused" && !session.isAdmitted) session.member = undefined;
      },
      end: (why) => void this.#end(run, session, why),
    };
  }

  /** PS3. */
  async #admit(run: string, session: Session, memoryMiB: Record<string, number>): Promise<void> {
    const { process, member } = session;
    session.isAdmitted = true;
    if (member === undefined) return; // nobody is admitted who has not joined
    await this.#record({ type: "admitted", run, process, member, memoryMiB });
    session.say({ type: "admitted", memoryMiB });
    this.#options.onNotice(`run '${run}' has joined`);
  }

  /** PS3. */
  async #end(run: string, session: Session, why: string): Promise<void> {
    session.isEnding = true;
    this.#options.onNotice(`ends run '${run}': ${why}`);
    await this.#record({ type: "ends", run, why });
    session.say({ type: "ended", why });
    setTimeout(() => void (this.#failure ?? this.#leave(run, session)), graceMs);
  }

  /** PS2. */
  #leave(run: string, session: Session): Promise<void> {
    session.gone ??= this.#clear(run, session);
    return session.gone;
  }

  async #clear(run: string, session: Session): Promise<void> {
    await this.#options.processes.end(session.process);
    this.#sessions.delete(run);
    const { leasedMs, waitedMs } = this.#pool.gone(run);
    if (!session.isAdmitted) return;
    const seconds = (ms: number) => `${Math.round(ms / 1000)} s`;
    this.#options.onNotice(
      `run '${run}' has gone: it had devices for ${seconds(leasedMs)}, and waited for ${seconds(waitedMs)}`,
    );
    await this.#record({ type: "gone", run });
  }

  /** Does not resolve where this process has the pool no more, so nothing comes of what was to be recorded. */
  async #record(entry: Parameters<PoolLog["append"]>[0]): Promise<void> {
    try {
      await this.#log.append(entry);
    } catch (error) {
      this.#fail(error as TreadleError);
      await new Promise<never>(() => {});
    }
  }

  #lookAfter(): void {
    if (this.#failure) return;
    for (const [run, session] of this.#sessions)
      if (!this.#options.processes.isThere(session.process)) void this.#leave(run, session);
  }

  /** While nothing can be heard no time passes: silence says nothing then. */
  #hears(isConnected: boolean): void {
    const nowMs = performance.now();
    if (!isConnected) this.#deafSinceMs ??= nowMs;
    else if (this.#deafSinceMs !== undefined) {
      this.#deafMs += nowMs - this.#deafSinceMs;
      this.#deafSinceMs = undefined;
    }
  }

  #superseded(): void {
    const message = `another process has pool '${this.#options.name}' now; runs follow that one`;
    this.#fail(new TreadleError("pool.taken", message));
  }
}
