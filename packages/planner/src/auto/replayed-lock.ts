/**
 * The device lock in a replay: who gets devices next, and the swaps before that. It knows the ranks of one plan, whose
 * calls come in the same order each step; `DeviceLockState` is the lock of a run, and does the same for calls of any kind.
 *
 * A rank goes once no earlier call that feeds it wants one of its devices before its first turn (L2), loans that are asked
 * for again first, then in the order of calls. Least recently used residents leave, and none whose memory is not needed (L4).
 */
import { memorySlack } from "../plan/component-time.ts";
import type { EventTimes } from "./event-times.ts";
import type { ReplayedCall, ReplayedWorker } from "./plan-replay.ts";

export type Party = {
  readonly sequence: number;
  readonly worker: Worker;
  state: "new" | "asking" | "preparing" | "holding" | "lent" | "closed";
  isReclaim: boolean;
  hasEnqueued: boolean;
  onGrant: () => void;
};

type Worker = ReplayedWorker & {
  readonly devices: readonly string[];
  state: "unloaded" | "onloading" | "loaded" | "offloading";
  lastUse: number;
};

type Device = {
  readonly bytes: number;
  holder: Party | undefined;
  readonly workers: Worker[];
  /** of the step */
  readonly parties: Party[];
};

export class ReplayedLock {
  readonly #calls: readonly ReplayedCall[];
  readonly #times: EventTimes;
  readonly #devices = new Map<string, Device>();
  readonly #workers = new Map<string, Worker>();
  /** by call, the earlier ones that feed it */
  readonly #feeding: readonly ReadonlySet<number>[];
  /** those that ask, of which something has changed since they were last looked at */
  readonly #changed = new Set<Party>();
  /** whether anything ever has to leave; where nothing has, all is loaded before the first step */
  readonly isShort: boolean;
  readonly #places = new Map<Worker, readonly Device[]>();
  #uses = 0;

  constructor(
    calls: readonly ReplayedCall[],
    workers: ReadonlyMap<string, ReplayedWorker>,
    memory: ReadonlyMap<string, number>,
    times: EventTimes,
  ) {
    this.#calls = calls;
    this.#times = times;
    this.#feeding = feedingCalls(calls);
    for (const { component, ranks } of calls) {
      for (const [rank, devices] of ranks.entries()) {
        const id = `${component}/${rank}`;
        if (this.#workers.has(id)) continue;
        const worker: Worker = { ...workers.get(component)!, devices, state: "unloaded", lastUse: 0 };
        this.#workers.set(id, worker);
        for (const device of devices) {
          const bytes = memory.get(device) ?? Number.POSITIVE_INFINITY;
          const known = this.#devices.get(device) ?? { bytes, holder: undefined, workers: [], parties: [] };
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
    if (!this.isShort) for (const worker of this.#workers.values()) worker.state = "loaded";
  }

  open(sequence: number, rank: number): Party {
    const { component } = this.#calls[sequence]!;
    const worker = this.#workers.get(`${component}/${rank}`)!;
    const party: Party = {
      sequence,
      worker,
      state: "new",
      isReclaim: false,
      hasEnqueued: false,
      onGrant: () => {},
    };
    for (const device of this.#devicesOf(worker)) device.parties.push(party);
    return party;
  }

  ask(party: Party, onGrant: () => void): void {
    party.state = "asking";
    party.onGrant = onGrant;
    this.#changed.add(party);
  }

  reclaim(party: Party, onGrant: () => void): void {
    party.isReclaim = true;
    this.ask(party, onGrant);
  }

  lend(party: Party): void {
    party.state = "lent";
    this.#free(party);
  }

  enqueued(party: Party): void {
    if (party.hasEnqueued) return;
    party.hasEnqueued = true;
    this.#change(party);
  }

  close(party: Party): void {
    party.state = "closed";
    this.#free(party);
  }

  endStep(): void {
    for (const { parties } of this.#devices.values()) parties.length = 0;
  }

  /** Grants what can be; false when nothing has changed since. */
  settle(): boolean {
    if (this.#changed.size === 0) return false;
    const inLine = [...this.#changed].filter(({ state }) => state === "asking");
    this.#changed.clear();
    inLine.sort((a, b) => Number(b.isReclaim) - Number(a.isReclaim) || a.sequence - b.sequence);
    const started: Party[] = [];
    for (const party of inLine) {
      const devices = this.#devicesOf(party.worker);
      if (devices.some(({ holder }) => holder) || !this.#mayGo(party, devices)) continue;
      for (const device of devices) device.holder = party;
      party.state = "preparing";
      started.push(party);
    }
    // What must leave for one may be all that another needs.
    if (started.length > 1) this.#makeRoom(started.map(({ worker }) => worker));
    for (const party of started) this.#prepare(party);
    return true;
  }

  #mayGo(party: Party, devices: readonly Device[]): boolean {
    if (party.isReclaim) return true;
    const feeding = this.#feeding[party.sequence]!;
    return devices.every(({ parties }) => parties.every((other) => !feeding.has(other.sequence) || hasHadTurn(other)));
  }

  #prepare(party: Party): void {
    const { worker } = party;
    if (!this.#makeRoom([worker])) return;
    if (worker.state === "unloaded") {
      worker.state = "onloading";
      this.#times.after(worker.onloadSeconds, () => {
        worker.state = "loaded";
        this.#prepare(party);
      });
    }
    if (worker.state !== "loaded") return;
    party.state = "holding";
    party.isReclaim = false;
    worker.lastUse = ++this.#uses;
    this.#times.after(0, party.onGrant);
  }

  /** Offloads what is in the way; whether nothing is any more. */
  #makeRoom(workers: readonly Worker[]): boolean {
    if (!this.isShort) return true;
    const incoming = new Set(workers);
    const excess = new Map<Device, number>();
    const leaving = new Map<Device, number>();
    const residents = new Set<Worker>();
    for (const device of new Set(workers.flatMap((worker) => this.#devicesOf(worker)))) {
      let [over, gone] = [-device.bytes * (1 + memorySlack), 0];
      for (const worker of device.workers) {
        const isIncoming = incoming.has(worker);
        if (isIncoming || worker.state === "loaded") over += worker.bytes;
        else if (worker.state === "offloading") gone += worker.bytes;
        if (!isIncoming && worker.state === "loaded") residents.add(worker);
      }
      excess.set(device, over);
      leaving.set(device, gone);
    }
    const isInTheWay = (worker: Worker): boolean =>
      this.#devicesOf(worker).some((device) => (excess.get(device) ?? 0) > 0);
    const shift = (worker: Worker, bytes: number): void => {
      for (const device of this.#devicesOf(worker))
        if (excess.has(device)) excess.set(device, excess.get(device)! + bytes);
    };
    const chosen: Worker[] = [];
    for (const worker of [...residents].sort((a, b) => a.lastUse - b.lastUse)) {
      if (!isInTheWay(worker)) continue;
      shift(worker, -worker.bytes);
      chosen.push(worker);
    }
    const gone = chosen.reverse().filter((worker) => {
      shift(worker, worker.bytes);
      if (!isInTheWay(worker)) return false;
      shift(worker, -worker.bytes);
      return true;
    });
    for (const worker of gone) {
      worker.state = "offloading";
      this.#times.after(worker.offloadSeconds, () => {
        worker.state = "unloaded";
        const waiting = new Set(this.#devicesOf(worker).map(({ holder }) => holder));
        for (const party of waiting) if (party?.state === "preparing") this.#prepare(party);
      });
    }
    return gone.length === 0 && [...excess].every(([device, over]) => over + leaving.get(device)! <= 0);
  }

  #free(party: Party): void {
    for (const device of this.#devicesOf(party.worker)) if (device.holder === party) device.holder = undefined;
    this.#change(party);
  }

  /** It matters to those that ask for one of its devices. */
  #change({ worker }: Party): void {
    for (const { parties } of this.#devicesOf(worker))
      for (const party of parties) if (party.state === "asking") this.#changed.add(party);
  }

  #devicesOf(worker: Worker): readonly Device[] {
    return this.#places.get(worker)!;
  }
}

/** It produces without its devices, or needs them no more. */
const hasHadTurn = ({ state, hasEnqueued }: Party): boolean => state === "closed" || (hasEnqueued && state === "lent");

function feedingCalls(calls: readonly ReplayedCall[]): ReadonlySet<number>[] {
  const found: ReadonlySet<number>[] = [];
  for (const [at, { takes }] of calls.entries()) {
    const channels = new Set(takes.map(({ channel }) => channel));
    const direct = calls.flatMap(({ puts }, i) => (puts.some(({ channel }) => channels.has(channel)) ? [i] : []));
    // Calls are in program order, so what feeds the earlier ones is known.
    const before = direct.filter((i) => i < at);
    found.push(new Set(before.flatMap((i) => [i, ...found[i]!])));
  }
  return found;
}
