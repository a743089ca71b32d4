/**
 * A pool of the devices of this machine that outlives the runs that share them: any run of the machine joins it over the
 * control plane. `DevicePool` decides; here are the pool's record, the processes of runs, and what is said to each.
 *
 * Owner of: the announcement of the pool, its log, what runs have not heard yet.
 *
 * - PS3 of several processes that have opened the pool's log, only the last admits runs and ends them: it does so when the log
 *   says so.
 * - PS4 a run hears nothing from a process that had the pool before one that it knows of; such a process ends as soon as it
 *   hears of the later one, and the log says that there is one. A later one counts all devices of every run that is in the log
 *   as leased until that run has joined it (PD9), so what it grants no earlier one has granted to anybody, nor will.
 * - PS6 a run that the log does not know, since it has been lost or in part, is ended when it has leases, or follows a process
 *   of which the log knows nothing. Processes that were there at the opening and that the log does not know may be such runs:
 *   nobody is admitted until each has said that it has no leases, or has gone.
 * - PS7 what the log says of runs of another machine, container or user is left alone: the pool does not open.
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
import { DevicePool, type PooledRun, type PoolLimits, type SharingOptions } from "./device-pool.ts";
import { Exchange } from "./exchange.ts";
import { PoolHistoryFile } from "./pool-history-file.ts";
import { type Admitted, PoolLog } from "./pool-log.ts";
import { hasStartedAgain, type ProcessLook } from "./run-process.ts";

type Marked = readonly Pick<RunProcess, "pid" | "mark">[];

/** How the processes of runs are seen and ended. */
export type RunProcesses = {
  /** It is there, and is the one that it says. */
  proves(process: RunProcess): boolean;
  /** Of one that has proved it. */
  look(process: RunProcess): ProcessLook;
  /** All that have asked for a mark. */
  all(): Marked;
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
  readonly sharing?: SharingOptions | undefined;
  readonly machine: string;
  readonly processes: RunProcesses;
  readonly onNotice: (text: string) => void;
  /** for a history of this process; without it, there is none */
  readonly historyFolder?: string | undefined;
};

/** Tokens that one process grants, at most, in each second of its life: epochs are seconds. All stay below 2^53 until 2242. */
const tokensAnEpoch = 2 ** 20;
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
  /** what it says is not heard yet (PS6) */
  isHeldBack = false;
  /** since the pool has decided to end it; resolves when it has been told so */
  ending: Promise<void> | undefined;
  gone: Promise<void> | undefined;
  #answer: () => void = () => {};

  constructor(process: RunProcess) {
    this.process = process;
  }

  /** It has joined, so that its sign of life counts. */
  get isIn(): boolean {
    return this.ending === undefined && !this.isHeldBack && (this.isAdmitted || this.member !== undefined);
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
  readonly #id: string;
  /** those that the log does not know, by their marks (PS6) */
  readonly #strangers: Map<string, Marked[number]>;
  /** what runs that want to join have said meanwhile */
  readonly #heldBack: (() => void)[] = [];
  readonly #watch: NodeJS.Timeout;
  readonly history: PoolHistoryFile | undefined;
  #announcement: Announcement | undefined;
  /** since when nothing can be heard, and for how long it was so before */
  #deafSinceMs: number | undefined;
  #deafMs = 0;
  #failure: TreadleError | undefined;
  #fail: (error: TreadleError) => void = () => {};
  /** rejects when this process has the pool no more: with `pool.taken` and `pool.lost` */
  readonly failed: Promise<never>;

  private constructor(options: PoolServiceOptions, log: PoolLog, id: string, marked: Marked) {
    this.#options = options;
    this.#log = log;
    this.#id = id;
    this.failed = new Promise((_, reject) => {
      this.#fail = (error) => {
        this.#failure ??= error;
        reject(this.#failure);
      };
    });
    this.failed.catch(() => {});
    const now = () => (this.#deafSinceMs ?? performance.now()) - this.#deafMs;
    const { name, limits, sharing, onNotice, historyFolder: folder } = options;
    if (folder !== undefined) this.history = new PoolHistoryFile({ folder, name: `pool-${name}-${log.epoch}` });
    const oldToken = log.epoch * tokensAnEpoch;
    this.#pool = new DevicePool(limits, { now, oldToken, sharing, onNotice, history: this.history });
    const known = [...log.admitted.values()].map(({ process }) => process.mark);
    const strangers = marked.filter(({ mark }) => !known.includes(mark));
    this.#strangers = new Map(strangers.map((each) => [each.mark, each]));
    for (const admitted of log.admitted.values()) this.#restore(admitted);
    if (strangers.length > 0) this.#tellOfStrangers();
    options.plane.onConnection((isConnected) => this.#hears(isConnected));
    this.#watch = setInterval(() => this.#lookAfter(), lookMs);
  }

  /** Rejects with `pool.taken`, `pool.lost`, `journal.corrupt`, and as `ControlPlane.announce` does. */
  static async open(options: PoolServiceOptions): Promise<PoolService> {
    const { name, plane, machine } = options;
    const host = hostname();
    const startedAt = new Date().toISOString();
    const opened = { host, pid: process.pid, at: startedAt };
    const mayBeOurs = (admitted: Admitted) => refuseOthers(admitted, machine, name);
    let marked: Marked;
    let log: PoolLog;
    try {
      marked = options.processes.all();
      log = await PoolLog.open(options.log, name, opened, mayBeOurs);
    } catch (error) {
      await options.log.close();
      await plane.close();
      throw error;
    }
    const id = crypto.randomUUID();
    const service = new PoolService(options, log, id, marked);
    try {
      const info: PoolInfo = { machine, host, pid: process.pid, startedAt, epoch: log.epoch, id };
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
    await this.#pool.close();
    await this.#announcement?.withdraw(reason).catch(() => {}); // silence says the same
    await this.#log.close();
    await this.#options.plane.close();
  }

  #status(): PoolStatus {
    return { runs: [...this.#pool.view()], slowdowns: this.#pool.slowdowns() };
  }

  async #talk(talk: PoolTalk) {
    if (this.#failure) throw this.#failure;
    const session = await this.#sessionOf(talk);
    if (talk.pool !== this.#id) await this.#judgeStray(talk, session);
    const { run, waits } = talk;
    if (session.isIn) this.#pool.received(run, { type: "beat" });
    for (const request of session.exchange.receive(talk)) this.#receive(run, session, request);
    if (waits && !session.exchange.isOpen) await session.hold();
    if (this.#failure) throw this.#failure;
    return session.exchange.message();
  }

  /** PS4, PS6. Rejects. */
  async #judgeStray({ run, epoch }: PoolTalk, session: Session): Promise<never> {
    const { name } = this.#options;
    if (epoch < this.epoch) throw new TreadleError("pool.lost", `pool '${name}' has been opened again since`);
    const why = `run '${run}' follows a process of pool '${name}' of which there is no record any more`;
    this.#pool.end(run, why);
    await Promise.race([session.ending, this.failed]); // by the log, this is the last that has the pool
    throw new TreadleError("pool.ended", why);
  }

  #receive(run: string, session: Session, request: PoolRequest): void {
    if (request.type === "join") {
      session.member = request.member;
      if ((request.leases ?? []).length === 0) this.#strangers.delete(session.process.mark); // PS6
    }
    const hear = () => {
      session.isHeldBack = false;
      if (this.#sessions.get(run) === session) this.#pool.received(run, request);
    };
    const isStranger = this.#strangers.has(session.process.mark); // it is ended
    session.isHeldBack = this.#strangers.size > 0 && !session.isAdmitted && !isStranger;
    if (session.isHeldBack) this.#heldBack.push(hear);
    else hear();
    this.#admitHeldBack();
  }

  #admitHeldBack(): void {
    if (this.#strangers.size > 0) return;
    for (const hear of this.#heldBack.splice(0)) hear();
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
      if (processes.look(present.process) !== "gone")
        throw refused(`run '${run}' is in pool '${name}', by process '${present.process.pid}'; wait for its end`);
      await this.#leave(run, present);
      present = this.#sessions.get(run); // or another one was faster
    }
    if (present?.process.mark === process.mark) return present;
    if (present)
      throw refused(`run '${run}' is in pool '${name}', by process '${present.process.pid}'; wait for its end`);
    if (!processes.proves(process))
      throw refused(`pool '${name}' cannot see process '${process.pid}' of run '${run}'; start both as the same user`);
    if (this.#sessions.size >= maxRuns)
      throw refused(`pool '${name}' has '${maxRuns}' runs, as many as it may; wait for the end of one`);
    const session = this.#open(run, process);
    this.#pool.add(run, this.#pooled(run, session));
    return session;
  }

  /** PS4. */
  #restore({ run, process, member, memoryMiB }: Admitted): void {
    const session = this.#open(run, process);
    session.isAdmitted = true;
    this.#pool.restore(run, this.#pooled(run, session), member, memoryMiB);
    const why = this.#log.ends.get(run);
    if (process.machine !== this.#options.machine)
      session.gone = this.#forget(run, session); // of before the machine started again
    else if (why !== undefined) this.#pool.end(run, why);
  }

  #tellOfStrangers(): void {
    const pids = [...this.#strangers.values()].map(({ pid }) => `'${pid}'`).join(", ");
    const message = `the record knows nothing of these processes of runs, which may have devices: ${pids}; no run is admitted until each has said what it has, or has ended`;
    this.#options.onNotice(message);
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
      end: (why) => {
        session.ending ??= this.#end(run, session, why);
      },
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
    await this.#record({ type: "ends", run, why });
    this.#options.onNotice(`ends run '${run}': ${why}`);
    session.say({ type: "ended", why });
    setTimeout(() => void this.#kill(run, session, why), graceMs);
  }

  /** PS3: this process may have been suspended meanwhile, and another one have the pool. */
  async #kill(run: string, session: Session, why: string): Promise<void> {
    if (this.#failure || session.gone) return;
    await this.#record({ type: "ends", run, why });
    await this.#leave(run, session);
  }

  /** PS2. */
  #leave(run: string, session: Session): Promise<void> {
    session.gone ??= this.#clear(run, session);
    return session.gone;
  }

  async #clear(run: string, session: Session): Promise<void> {
    await this.#options.processes.end(session.process);
    await this.#forget(run, session);
  }

  async #forget(run: string, session: Session): Promise<void> {
    this.#sessions.delete(run);
    this.#strangers.delete(session.process.mark);
    this.#admitHeldBack();
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
    const { look } = this.#options.processes;
    for (const [run, session] of this.#sessions) if (look(session.process) === "gone") void this.#leave(run, session);
    if (this.#strangers.size > 0) this.#forgetStrangers();
  }

  /** Those that are not there any more. */
  #forgetStrangers(): void {
    let marks: Set<string>;
    try {
      marks = new Set(this.#options.processes.all().map(({ mark }) => mark));
    } catch {
      return; // the system does not say
    }
    for (const mark of this.#strangers.keys()) if (!marks.has(mark)) this.#strangers.delete(mark);
    this.#admitHeldBack();
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

/** PS7. */
function refuseOthers({ run, process }: Admitted, machine: string, name: string): void {
  if (process.machine === machine || hasStartedAgain(machine, process.machine)) return;
  const of = process.machine.split("/")[0];
  const message = `pool '${name}' has run '${run}' of another machine, container or user, '${of}'; give this one a name of its own, as 'treadle pool start ${name}-2', or, when no run of that one is left, remove its record with 'treadle runs --nats … --forget pool-${name}'`;
  throw new TreadleError("pool.taken", message);
}
