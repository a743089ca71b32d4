/**
 * What of whom is loaded on which device, and what must leave so that somebody else fits (L1, L4). An engine that tells its tags is
 * released and restored tag by tag; any other is one piece. One whose memory nobody knows yet loads while nobody else is loaded on its
 * devices.
 *
 * - MT3 a grant finds loaded what it asked for, and no more of its worker: what it did not ask for stays where there is room.
 * - MT4 what a release has left on the devices, as it was measured then, counts against whoever loads next.
 */
import { chooseLeaving, type Movable, type ReleasableTag, type TagMemory } from "@treadle/contracts";
import { CommonSum, commonKey, groupedByMemory } from "./common-memory.ts";
import type { DeviceInput, Residency, WorkerInput } from "./lock-messages.ts";

/** What is released and restored as one. */
export type Part = {
  /** undefined where the worker is one piece */
  readonly tag: ReleasableTag | undefined;
  /** of what has a tag */
  bytes: number;
  /** to release and to restore it; undefined where nobody has said */
  seconds: number | undefined;
  /** names memory that other workers have, too */
  sharedAs: string | undefined;
  isLoaded: boolean;
};

export type WorkerState = {
  readonly worker: string;
  readonly devices: readonly string[];
  /** with all of its parts; undefined until its first load is over: until then it may need all of each device */
  residentBytes: number | undefined;
  /** what stays on each device whatever is released, such as contexts and buffers; from the first load on where tags tell it, else from the first release on */
  residualBytes: number;
  parts: readonly Part[];
  /** one at a time */
  swap: { readonly type: "onload" | "offload"; parts: readonly Part[] } | undefined;
  /** Rises with every use: the smallest is the least recently used. */
  lastUse: number;
};

/** What a grant needs of a worker. */
export type Want = { readonly worker: WorkerState; readonly parts: readonly Part[] };

type DeviceState = { readonly capacityBytes: number; readonly workers: Set<WorkerState> };

export type Room =
  | { readonly fits: true }
  /** `offload` is what must go; when empty, offloads that are under way make the room. */
  | { readonly fits: false; readonly offload: readonly Want[] };

export type Excess = {
  readonly device: string;
  readonly needsBytes: number;
  readonly capacityBytes: number;
  /** others of which something stays there */
  readonly left: readonly WorkerState[];
  readonly leftBytes: number;
};

export class ResidencyTable {
  readonly #devices = new Map<string, DeviceState>();
  readonly #workers = new Map<string, WorkerState>();
  #lastUse = 0;

  addDevice({ device, capacityBytes }: DeviceInput): void {
    this.#devices.set(device, { capacityBytes, workers: new Set() });
  }

  addWorker(input: WorkerInput): void {
    const state: WorkerState = {
      worker: input.worker,
      devices: [...new Set(input.devices)],
      residentBytes: input.residentBytes,
      residualBytes: 0,
      parts: [{ tag: undefined, bytes: 0, seconds: undefined, sharedAs: undefined, isLoaded: input.loaded === true }],
      swap: undefined,
      lastUse: 0,
    };
    this.removeWorker(input.worker);
    this.#workers.set(input.worker, state);
    for (const device of state.devices) this.#devices.get(device)?.workers.add(state);
  }

  removeWorker(worker: string): void {
    const state = this.#workers.get(worker);
    if (!state) return;
    for (const device of state.devices) this.#devices.get(device)?.workers.delete(state);
    this.#workers.delete(worker);
  }

  /** What a worker has while it is loaded, all in all, and by tag where its engine tells. A part that is new is as loaded as the others are. */
  report(worker: WorkerState, residentBytes: number | undefined, tags: readonly TagMemory[] = []): void {
    worker.residentBytes = residentBytes;
    if (tags.length === 0 && worker.parts[0]?.tag === undefined) return;
    const before = new Map(worker.parts.map((part) => [part.tag, part]));
    const isLoaded = worker.parts.every((part) => part.isLoaded);
    const parts = tags.map(({ tag, bytes, releaseSeconds, restoreSeconds, sharedAs }): Part => {
      const told = { tag, bytes, seconds: releaseSeconds + restoreSeconds, sharedAs };
      return Object.assign(before.get(tag) ?? { isLoaded }, told);
    });
    if (parts.length === 0) parts.push({ tag: undefined, bytes: 0, seconds: undefined, sharedAs: undefined, isLoaded });
    const { swap } = worker;
    if (swap?.parts.some((part) => !parts.includes(part))) swap.parts = parts;
    worker.parts = parts;
    if (parts.some((part) => part.isLoaded)) worker.residualBytes = Math.max(worker.residualBytes, besidesTags(worker));
  }

  startSwap(worker: WorkerState, type: "onload" | "offload", parts: readonly Part[]): void {
    worker.swap = { type, parts };
    if (type === "onload") worker.residualBytes = Math.max(worker.residualBytes, besidesTags(worker));
  }

  /** `leftBytes`: what a release has left of the worker, all in all. */
  endSwap(worker: WorkerState, succeeded: boolean, leftBytes = 0): void {
    const { swap } = worker;
    worker.swap = undefined;
    if (!succeeded || !swap) return;
    for (const part of swap.parts) part.isLoaded = swap.type === "onload";
    if (swap.type === "onload") worker.residualBytes = Math.max(worker.residualBytes, besidesTags(worker));
    else {
      const stays = worker.parts.reduce((sum, part) => sum + (part.isLoaded ? bytesOf(worker, part) : 0), 0);
      worker.residualBytes = Math.max(0, leftBytes - stays); // MT4
    }
  }

  /** Its process is gone. */
  vacate(worker: WorkerState): void {
    worker.swap = undefined;
    worker.residualBytes = 0;
    for (const part of worker.parts) part.isLoaded = false;
  }

  get(worker: string): WorkerState | undefined {
    return this.#workers.get(worker);
  }

  get workers(): Iterable<WorkerState> {
    return this.#workers.values();
  }

  touch(worker: WorkerState): void {
    this.#lastUse += 1;
    worker.lastUse = this.#lastUse;
  }

  hasDevice(device: string): boolean {
    return this.#devices.has(device);
  }

  get devices(): { device: string; capacityBytes: number; usedBytes: number }[] {
    return [...this.#devices].map(([device, { capacityBytes }]) => ({
      device,
      capacityBytes,
      usedBytes: this.#usedBytes(device),
    }));
  }

  /** The device on which these together can never fit beside what others leave there, and by how much. */
  excess(wants: readonly Want[]): Excess | undefined {
    const wanted = new Set(wants.map(({ worker }) => worker));
    for (const device of devicesOf(wants.map(({ worker }) => worker))) {
      const { capacityBytes, workers: all } = this.#devices.get(device) as DeviceState;
      const needsBytes = neededOn(device, wants);
      const left = [...all].filter((worker) => worker.residualBytes > 0 && !wanted.has(worker));
      const leftBytes = left.reduce((sum, { residualBytes }) => sum + residualBytes, 0);
      if (needsBytes + leftBytes > capacityBytes) return { device, needsBytes, capacityBytes, left, leftBytes };
    }
    return undefined;
  }

  /**
   * Whether what is wanted fits beside what is loaded, and if not, what is released for it (L4: never a needless swap). The caller has
   * reserved all devices of these workers, so that nothing there is in use.
   */
  roomFor(wants: readonly Want[]): Room {
    const wantedOf = new Map(wants.map(({ worker, parts }) => [worker, parts]));
    const devices = devicesOf([...wantedOf.keys()]);
    const staying = new Map<string, number>();
    const leaving = new Map<string, number>();
    const residents = new Set<WorkerState>();
    const wantedKeys = new Set(wants.flatMap(({ parts }) => parts.flatMap((part) => commonKey(part) ?? [])));
    for (const device of devices) {
      const { capacityBytes, workers } = this.#devices.get(device) as DeviceState;
      const isUnknown = wants.some(
        ({ worker }) => worker.residentBytes === undefined && worker.devices.includes(device),
      );
      const own = isUnknown ? capacityBytes : neededOn(device, wants);
      let stayingBytes = own - capacityBytes;
      let leavingBytes = 0;
      const loaded: { readonly worker: WorkerState; readonly part: Part }[] = [];
      for (const worker of workers) {
        // One that may need all of the device has nobody beside it; what has stayed is nobody's to give.
        if (!wantedOf.has(worker) && !isUnknown) stayingBytes += worker.residualBytes;
        for (const part of spare(worker, wantedOf)) {
          if (!isLeaving(worker, part)) residents.add(worker);
          if (!wantedKeys.has(commonKey(part) ?? "")) loaded.push({ worker, part }); // MT5: else it counts as wanted
        }
      }
      for (const group of groupedByMemory(loaded)) {
        const bytes = Math.max(...group.map(({ worker, part }) => bytesOf(worker, part)));
        if (group.every(({ worker, part }) => isLeaving(worker, part))) leavingBytes += bytes;
        else stayingBytes += bytes;
      }
      staying.set(device, stayingBytes);
      leaving.set(device, leavingBytes);
    }
    const movables = movablesOf(
      [...residents].sort((a, b) => a.lastUse - b.lastUse),
      wantedOf,
      wantedKeys,
    );
    const hasTags = movables.some(({ members }) => members.some(({ part }) => part.tag !== undefined));
    const chosen = chooseLeaving(staying, movables, hasTags ? "seconds" : "age");
    const offload = new Map<WorkerState, Part[]>();
    for (const { worker, part } of [...chosen].flatMap(({ members }) => members))
      if (worker.swap === undefined) offload.set(worker, [...(offload.get(worker) ?? []), part]);
    if (chosen.size > 0) return { fits: false, offload: [...offload].map(([worker, parts]) => ({ worker, parts })) };
    const fits = devices.every((device) => (staying.get(device) ?? 0) + (leaving.get(device) ?? 0) <= 0);
    return fits ? { fits } : { fits, offload: [] };
  }

  #usedBytes(device: string): number {
    const { workers } = this.#devices.get(device) as DeviceState;
    const loaded = new CommonSum();
    let residualBytes = 0;
    for (const worker of workers) {
      residualBytes += worker.residualBytes;
      for (const part of worker.parts)
        if (part.isLoaded || worker.swap?.parts.includes(part)) loaded.add(part, bytesOf(worker, part));
    }
    return residualBytes + loaded.bytes;
  }
}

export function devicesOf(workers: readonly WorkerState[]): string[] {
  return workers.length === 1
    ? [...(workers[0] as WorkerState).devices]
    : [...new Set(workers.flatMap((worker) => worker.devices))];
}

export function residencyOf({ swap, parts }: WorkerState): Residency {
  if (swap) return swap.type === "onload" ? "onloading" : "offloading";
  if (parts.every((part) => part.isLoaded)) return "loaded";
  return parts.some((part) => part.isLoaded) ? "partly loaded" : "unloaded";
}

/** On each of its devices, of what a grant needs of it. */
export function neededBytes({ worker, parts }: Want): number {
  const { residentBytes = 0, residualBytes } = worker;
  const [first] = worker.parts;
  if (first?.tag === undefined) return residentBytes;
  const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
  return Math.min(residentBytes, bytes + Math.max(residualBytes, besidesTags(worker)));
}

/** What a release gives back, as far as it is known. */
function bytesOf({ residentBytes = 0, residualBytes }: WorkerState, { tag, bytes }: Part): number {
  return tag === undefined ? Math.max(0, residentBytes - residualBytes) : bytes;
}

/** What a worker that tells its tags has besides them. */
function besidesTags({ residentBytes = 0, parts }: WorkerState): number {
  if (parts[0]?.tag === undefined) return 0;
  return Math.max(0, residentBytes - parts.reduce((sum, { bytes }) => sum + bytes, 0));
}

const isLeaving = ({ swap }: WorkerState, part: Part): boolean => swap?.type === "offload" && swap.parts.includes(part);

/** What is loaded of a worker, and not wanted. */
function spare(worker: WorkerState, wantedOf: ReadonlyMap<WorkerState, readonly Part[]>): readonly Part[] {
  const wanted = wantedOf.get(worker);
  return worker.parts.filter((part) => part.isLoaded && !wanted?.includes(part));
}

/** MT5. */
function neededOn(device: string, wants: readonly Want[]): number {
  const there = wants.filter(({ worker }) => worker.devices.includes(device));
  const common = new CommonSum();
  let twice = 0;
  for (const { worker, parts } of there)
    for (const part of parts) {
      const before = common.bytes;
      const bytes = bytesOf(worker, part);
      common.add(part, bytes);
      if (commonKey(part) !== undefined) twice += before + bytes - common.bytes;
    }
  return there.reduce((sum, want) => sum + neededBytes(want), 0) - twice;
}

type Leaving = Movable & { readonly members: readonly { readonly worker: WorkerState; readonly part: Part }[] };

/**
 * A part of which nobody has said what it costs takes as long for each byte as the slowest of the others. What is in common leaves as
 * one, and not for a grant that has it, too (MT5).
 */
function movablesOf(
  residents: readonly WorkerState[],
  wantedOf: ReadonlyMap<WorkerState, readonly Part[]>,
  wantedKeys: ReadonlySet<string>,
): Leaving[] {
  const loaded = residents.flatMap((worker) =>
    spare(worker, wantedOf).flatMap((part) => {
      if (isLeaving(worker, part) || wantedKeys.has(commonKey(part) ?? "")) return [];
      return [{ worker, part, bytes: bytesOf(worker, part) }];
    }),
  );
  const rates = loaded.map(({ part, bytes }) => (bytes > 0 ? (part.seconds ?? 0) / bytes : 0));
  const slowest = Math.max(0, ...rates);
  return groupedByMemory(loaded).map((members) => ({
    devices: [...new Set(members.flatMap(({ worker }) => worker.devices))],
    bytes: Math.max(...members.map(({ bytes }) => bytes)),
    seconds: Math.max(...members.map(({ part, bytes }) => part.seconds ?? slowest * bytes)),
    members,
  }));
}
