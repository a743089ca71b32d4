/**
 * The device lock in a replay: who gets devices next, and the swaps before that. It knows the ranks of one plan, whose
 * calls come in the same order each step; `DeviceLockState` is the lock of a run, and does the same for calls of any kind. That
 * one also bounds how often a call is passed over (`maxBypass`).
 *
 * A party goes once no earlier call that feeds it wants one of its devices before its first turn (L2), or has lent them with
 * nothing put that it could take, loans that are asked for again first, then in the order of calls. A party each of
 * whose devices has gone to one behind it, as the others were held, keeps the rest off. What leaves is what leaves the devices of
 * a run (L4, MT2), and nothing whose memory is not needed.
 * A party is a rank, or all ranks of a gang: these get their devices together, lend them once each of them waits, and have them
 * again once each has what it waits for.
 */
import { chooseLeaving } from "@treadle/contracts";
import { memorySlack } from "../plan/component-time.ts";
import type { EventTimes } from "./event-times.ts";
import type { Busy, ReplayedCall, ReplayedWorker } from "./plan-replay.ts";

/** One rank's call. `waiting` for data or credit; `ready` to go on, once its party has the devices. */
export type Member = {
  readonly party: Party;
  state: "new" | "ready" | "active" | "waiting" | "closed";
  /** channels */
  readonly enqueued: Set<string>;
  goOn: () => void;
};

type Party = {
  readonly sequence: number;
  readonly members: Member[];
  readonly workers: Worker[];
  readonly devices: Device[];
  state: "new" | "asking" | "preparing" | "holding" | "lent" | "closed";
  isReclaim: boolean;
  /** that went to parties behind it, since others of its devices were held */
  readonly missed: Set<Device>;
  /** whether it is looked at again before time goes on */
  isDue: boolean;
};

type Worker = Omit<ReplayedWorker, "parts"> & {
  readonly component: string;
  readonly devices: readonly string[];
  readonly parts: readonly Part[];
  /** what no release gives back */
  readonly residualBytes: number;
  /** what stays is there from the first load on */
  wasLoaded: boolean;
  /** one swap at a time */
  isSwapping: boolean;
  lastUse: number;
};

/** Of a worker, what leaves and comes back as one: a tag, or all of it. */
type Part = {
  readonly bytes: number;
  readonly onloadSeconds: number;
  readonly offloadSeconds: number;
  readonly hasTag: boolean;
  state: "unloaded" | "loaded" | "offloading";
};

type Device = {
  readonly id: string;
  readonly bytes: number;
  holder: Party | undefined;
  readonly workers: Worker[];
  /** that are open */
  readonly parties: Party[];
};

export class ReplayedLock {
  readonly #calls: readonly ReplayedCall[];
  readonly #times: EventTimes;
  readonly #busy: Busy;
  readonly #devices = new Map<string, Device>();
  readonly #workers = new Map<string, Worker>();
  readonly #feeding: readonly Feeding[];
  /** that are open, by call */
  readonly #gangs = new Map<number, Party>();
  /** those that ask, of which something has changed since they were last looked at */
  readonly #changed = new Set<Party>();
  /** those that ask and have missed each of their devices */
  readonly #overdue = new Set<Party>();
  /** whether anything ever has to leave; where nothing has, all is loaded before the first step */
  readonly isShort: boolean;
  readonly #places = new Map<Worker, readonly Device[]>();
  #uses = 0;

  constructor(
    calls: readonly ReplayedCall[],
    workers: ReadonlyMap<string, ReplayedWorker>,
    memory: ReadonlyMap<string, number>,
    times: EventTimes,
    busy: Busy,
  ) {
    this.#calls = calls;
    this.#times = times;
    this.#busy = busy;
    this.#feeding = feedingCalls(calls);
    for (const { component, ranks } of calls) {
      for (const [rank, devices] of ranks.entries()) {
        const id = `${component}/${rank}`;
        if (this.#workers.has(id)) continue;
        const worker = unloaded(component, workers.get(component)!, devices);
        this.#workers.set(id, worker);
        for (const device of devices) {
          const bytes = memory.get(device) ?? Number.POSITIVE_INFINITY;
          const known = this.#devices.get(device) ?? { id: device, bytes, holder: undefined, workers: [], parties: [] };
          known.workers.push(worker);
          this.#devices.set(device, known);
        }
      }
    }
    for (const worker of this.#workers.values())
      this.#places.set(
        worker,
        worker.devices.map((device) => this.#devices.get(device)!),
      );
    this.isShort = [...this.#devices.values()].some(
      (device) => device.workers.reduce((sum, { bytes }) => sum + bytes, 0) > device.bytes * (1 + memorySlack),
    );
    if (this.isShort) return;
    for (const { parts } of this.#workers.values()) for (const part of parts) part.state = "loaded";
  }

  open(sequence: number, rank: number): Member {
    const { component, isGang } = this.#calls[sequence % this.#calls.length]!;
    const worker = this.#workers.get(`${component}/${rank}`)!;
    const party: Party = this.#gangs.get(sequence) ?? {
      sequence,
      members: [],
      workers: [],
      devices: [],
      state: "new",
      isReclaim: false,
      missed: new Set(),
      isDue: false,
    };
    if (isGang) this.#gangs.set(sequence, party);
    const member: Member = { party, state: "new", enqueued: new Set(), goOn: () => {} };
    party.members.push(member);
    party.workers.push(worker);
    for (const device of this.#devicesOf(worker)) {
      if (party.devices.includes(device)) continue;
      party.devices.push(device);
      device.parties.push(party);
    }
    return member;
  }

  /** Of a call that begins, and of one that has what it waited for; a gang that has not lent its devices has them still. */
  ask(member: Member, goOn: () => void): void {
    const { party } = member;
    if (member.state === "waiting" && party.state === "holding") {
      member.state = "active";
      goOn();
      return;
    }
    member.state = "ready";
    member.goOn = goOn;
    if (party.state === "asking" || party.state === "preparing") return; // the grant is for all that are ready then
    if (party.members.some(({ state }) => state === "new" || state === "waiting")) return;
    this.#askFor(party);
  }

  /** While it waits for data or credit. */
  lend(member: Member): void {
    member.state = "waiting";
    this.#lendOut(member.party);
  }

  enqueued(member: Member, channel: string): void {
    if (member.enqueued.has(channel)) return;
    member.enqueued.add(channel);
    this.#change(member.party);
  }

  close(member: Member): void {
    const { party } = member;
    member.state = "closed";
    if (party.members.every(({ state }) => state === "closed")) {
      party.state = "closed";
      this.#free(party);
      this.#gangs.delete(party.sequence);
      for (const { parties } of party.devices) parties.splice(parties.indexOf(party), 1);
    } else this.#lendOut(party);
  }

  /**
   * Nothing else can happen: those that a gang waits for, to have their turn or to supply some of its ranks, wait for the gang. It
   * has the devices for its ranks that can go on.
   */
  goOnWithoutOthers(): boolean {
    const party = [...this.#gangs.values()].find(
      ({ state, members, devices }) =>
        (state === "lent" || state === "asking") &&
        members.some((member) => member.state === "ready") &&
        devices.every(({ holder }) => holder === undefined),
    );
    if (party === undefined) return false;
    this.#askFor(party);
    party.isReclaim = true;
    return true;
  }

  endStep(): void {
    for (const { parties } of this.#devices.values()) parties.length = 0;
    this.#gangs.clear();
    this.#overdue.clear();
  }

  /** Grants what can be; false when nothing has changed since. */
  settle(): boolean {
    if (this.#changed.size === 0) return false;
    const inLine = [...new Set([...this.#overdue, ...this.#changed])].filter(({ state }) => state === "asking");
    this.#changed.clear();
    inLine.sort((a, b) => this.#compare(a, b));
    const claimed = new Set<Device>();
    const started: Party[] = [];
    for (const party of inLine) {
      const { devices } = party;
      const isFree = devices.every((device) => device.holder === undefined && !claimed.has(device));
      if ((!isFree && !this.#overdue.has(party)) || !this.#mayGo(party, devices)) continue;
      if (isFree) {
        this.#reserve(party);
        started.push(party);
      } else for (const device of devices) claimed.add(device);
    }
    // What must leave for one may be all that another needs.
    if (started.length > 1) this.#makeRoom(started.flatMap(({ workers }) => workers));
    for (const party of started) this.#prepare(party);
    return true;
  }

  #compare(a: Party, b: Party): number {
    const rank = (party: Party): number => (this.#overdue.has(party) ? 0 : party.isReclaim ? 1 : 2);
    return rank(a) - rank(b) || a.sequence - b.sequence;
  }

  #reserve(party: Party): void {
    const { devices } = party;
    party.state = "preparing";
    for (const other of new Set(devices.flatMap(({ parties }) => parties))) {
      if (other.state !== "asking" || this.#overdue.has(other)) continue;
      if (this.#compare(other, party) >= 0 || !this.#mayGo(other, other.devices)) continue;
      for (const device of devices) if (other.devices.includes(device)) other.missed.add(device);
      if (other.missed.size === other.devices.length) this.#overdue.add(other);
    }
    for (const device of devices) device.holder = party;
    party.missed.clear();
    this.#overdue.delete(party);
  }

  #mayGo(party: Party, devices: readonly Device[]): boolean {
    if (party.isReclaim) return true;
    const at = party.sequence % this.#calls.length;
    const feeding = this.#feeding[at]!;
    const stepFrom = party.sequence - at;
    const mayPrecede = (other: Party): boolean => {
      const channels = feeding.get(other.sequence - stepFrom);
      return channels === undefined || hasHadTurn(other, channels);
    };
    return devices.every(({ parties }) => parties.every(mayPrecede));
  }

  /** Once for all of its ranks that have come or left by now: a gang may have thousands. */
  #prepareSoon(party: Party): void {
    if (party.isDue) return;
    party.isDue = true;
    this.#times.after(0, () => {
      party.isDue = false;
      this.#prepare(party);
    });
  }

  #prepare(party: Party): void {
    const { workers, members } = party;
    if (!this.#makeRoom(workers)) return;
    for (const worker of workers) {
      const coming = worker.parts.filter(({ state }) => state === "unloaded");
      if (worker.isSwapping || coming.length === 0) continue;
      worker.wasLoaded = true;
      this.#swap(worker, sum(coming, "onloadSeconds"), () => {
        for (const part of coming) part.state = "loaded";
        this.#prepareSoon(party);
      });
    }
    if (workers.some(({ parts }) => parts.some(({ state }) => state !== "loaded"))) return;
    party.state = "holding";
    party.isReclaim = false;
    for (const worker of workers) worker.lastUse = ++this.#uses;
    for (const member of members) {
      if (member.state !== "ready") continue;
      member.state = "active";
      this.#times.after(0, member.goOn);
    }
  }

  /** Offloads what is in the way; whether nothing is any more. */
  #makeRoom(workers: readonly Worker[]): boolean {
    if (!this.isShort) return true;
    const incoming = new Set(workers);
    const missing = new Map<string, number>();
    const leaving = new Map<string, number>();
    const residents = new Set<Worker>();
    for (const device of new Set(workers.flatMap((worker) => this.#devicesOf(worker)))) {
      let [over, gone] = [-device.bytes * (1 + memorySlack), 0];
      for (const worker of device.workers) {
        if (incoming.has(worker)) {
          over += worker.bytes;
          continue;
        }
        if (worker.wasLoaded) over += worker.residualBytes;
        for (const { state, bytes } of worker.parts) {
          if (state === "offloading") gone += bytes;
          if (state !== "loaded") continue;
          over += bytes;
          residents.add(worker);
        }
      }
      missing.set(device.id, over);
      leaving.set(device.id, gone);
    }
    const movables = [...residents]
      .sort((a, b) => a.lastUse - b.lastUse)
      .flatMap((worker) =>
        worker.parts.flatMap((part) => {
          if (part.state !== "loaded") return [];
          return { worker, part, devices: worker.devices, bytes: part.bytes, seconds: secondsOf(part) };
        }),
      );
    const chosen = chooseLeaving(missing, movables, movables.some(({ part }) => part.hasTag) ? "seconds" : "age");
    const gone = new Map<Worker, Part[]>();
    for (const { worker, part } of chosen)
      if (!worker.isSwapping) gone.set(worker, [...(gone.get(worker) ?? []), part]);
    for (const [worker, parts] of gone) {
      for (const part of parts) part.state = "offloading";
      this.#swap(worker, sum(parts, "offloadSeconds"), () => {
        for (const part of parts) part.state = "unloaded";
        const waiting = new Set(this.#devicesOf(worker).map(({ holder }) => holder));
        for (const party of waiting) if (party?.state === "preparing") this.#prepareSoon(party);
      });
    }
    return chosen.size === 0 && [...missing].every(([device, over]) => over + leaving.get(device)! <= 0);
  }

  #swap(worker: Worker, seconds: number, over: () => void): void {
    worker.isSwapping = true;
    this.#busy(worker.component, worker.devices, "swap", seconds);
    this.#times.after(seconds, () => {
      worker.isSwapping = false;
      over();
    });
  }

  #askFor(party: Party): void {
    party.isReclaim = party.state === "lent";
    party.state = "asking";
    this.#changed.add(party);
  }

  #lendOut(party: Party): void {
    if (party.state !== "holding" || party.members.some(({ state }) => state === "active")) return;
    party.state = "lent";
    this.#free(party);
  }

  #free(party: Party): void {
    for (const device of party.devices) if (device.holder === party) device.holder = undefined;
    this.#change(party);
  }

  /** It matters to those that ask for one of its devices. */
  #change({ devices }: Party): void {
    for (const { parties } of devices)
      for (const party of parties) if (party.state === "asking") this.#changed.add(party);
  }

  #devicesOf(worker: Worker): readonly Device[] {
    return this.#places.get(worker)!;
  }
}

function unloaded(component: string, worker: ReplayedWorker, devices: readonly string[]): Worker {
  const { bytes, onloadSeconds, offloadSeconds } = worker;
  const hasTags = worker.parts !== undefined;
  const parts = (worker.parts ?? [{ bytes, onloadSeconds, offloadSeconds }]).map((part): Part => {
    return { ...part, hasTag: hasTags, state: "unloaded" };
  });
  const residualBytes = Math.max(0, bytes - sum(parts, "bytes"));
  return { ...worker, component, devices, parts, residualBytes, wasLoaded: false, isSwapping: false, lastUse: 0 };
}

const sum = (parts: readonly Part[], of: "bytes" | "onloadSeconds" | "offloadSeconds"): number =>
  parts.reduce((total, part) => total + part[of], 0);

const secondsOf = ({ onloadSeconds, offloadSeconds }: Part): number => onloadSeconds + offloadSeconds;

/** The earlier calls that feed one, however indirectly, and by which channels; none where it is by way of others alone. */
type Feeding = ReadonlyMap<number, readonly string[]>;

/** Whether it has lent its devices with something put into these channels, or needs them no more. */
function hasHadTurn({ state, members }: Party, channels: readonly string[]): boolean {
  if (state !== "lent") return state === "closed";
  const hasPut = ({ enqueued }: Member): boolean =>
    channels.length > 0 ? channels.some((channel) => enqueued.has(channel)) : enqueued.size > 0;
  return members.every((member) => member.state === "closed" || hasPut(member));
}

function feedingCalls(calls: readonly ReplayedCall[]): Feeding[] {
  const found: Feeding[] = [];
  for (const [at, { takes }] of calls.entries()) {
    const taken = new Set(takes.map(({ channel }) => channel));
    const feeding = new Map<number, readonly string[]>();
    // Calls are in program order, so what feeds the earlier ones is known.
    for (const [i, { puts }] of calls.slice(0, at).entries()) {
      const channels = puts.flatMap(({ channel }) => (taken.has(channel) ? [channel] : []));
      if (channels.length === 0) continue;
      for (const before of found[i]!.keys()) if (!feeding.has(before)) feeding.set(before, []);
      feeding.set(i, channels);
    }
    found.push(feeding);
  }
  return found;
}
