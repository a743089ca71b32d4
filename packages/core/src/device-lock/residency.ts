/**
 * Who is loaded on which device, and whom to offload so that somebody else fits (L1, L4). What stays of an offloaded worker counts,
 * as it was measured then. One whose memory nobody knows yet loads while nobody else is loaded on its devices.
 */
import type { DeviceInput, Residency, WorkerInput } from "./lock-messages.ts";

export type WorkerState = {
  readonly worker: string;
  readonly devices: readonly string[];
  /** undefined until its first load is over: until then it may need all of each device */
  residentBytes: number | undefined;
  /** what its last offload has left on each device, such as contexts and buffers; part of `residentBytes` while it is loaded */
  residualBytes: number;
  residency: Residency;
  /** Rises with every use: the smallest is the least recently used. */
  lastUse: number;
};

type DeviceState = { readonly capacityBytes: number; readonly workers: Set<WorkerState> };

export type Room =
  | { readonly fits: true }
  /** `offload` is what must go; when empty, offloads that are under way make the room. */
  | { readonly fits: false; readonly offload: readonly WorkerState[] };

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
      residency: input.loaded ? "loaded" : "unloaded",
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

  /** The device on which these workers together can never fit beside what others leave there, and by how much. */
  excess(workers: readonly WorkerState[]): Excess | undefined {
    for (const device of devicesOf(workers)) {
      const { capacityBytes, workers: all } = this.#devices.get(device) as DeviceState;
      const needsBytes = sumBytes(workers.filter((worker) => worker.devices.includes(device)));
      const left = [...all].filter((worker) => worker.residualBytes > 0 && !workers.includes(worker));
      const leftBytes = left.reduce((sum, { residualBytes }) => sum + residualBytes, 0);
      if (needsBytes + leftBytes > capacityBytes) return { device, needsBytes, capacityBytes, left, leftBytes };
    }
    return undefined;
  }

  /**
   * Whether `incoming` fit beside the residents, and if not, whom to offload: least recently used first until they fit,
   * then without those whose memory turned out not to be needed (L4: never a needless swap). The caller has reserved
   * all devices of `incoming`, so that no resident there is in use.
   */
  roomFor(incoming: readonly WorkerState[]): Room {
    const devices = devicesOf(incoming);
    const staying = new Map<string, number>();
    const leaving = new Map<string, number>();
    const residents = new Set<WorkerState>();
    for (const device of devices) {
      const { capacityBytes, workers } = this.#devices.get(device) as DeviceState;
      const here = incoming.filter((worker) => worker.devices.includes(device));
      const isUnknown = here.some(({ residentBytes }) => residentBytes === undefined);
      const own = isUnknown ? capacityBytes : sumBytes(here);
      let stayingBytes = own - capacityBytes;
      let leavingBytes = 0;
      for (const worker of workers) {
        if (incoming.includes(worker)) continue;
        // One that may need all of the device has nobody beside it; what has stayed is nobody's to give.
        if (!isUnknown) stayingBytes += worker.residualBytes;
        if (worker.residency === "offloading") leavingBytes += movableBytes(worker);
        else if (worker.residency === "loaded") {
          stayingBytes += movableBytes(worker);
          residents.add(worker);
        }
      }
      staying.set(device, stayingBytes);
      leaving.set(device, leavingBytes);
    }
    const excessOf = (device: string): number => staying.get(device) ?? Number.NEGATIVE_INFINITY;
    const shift = (worker: WorkerState, sign: 1 | -1): void => {
      for (const device of worker.devices) {
        if (staying.has(device)) staying.set(device, excessOf(device) + sign * movableBytes(worker));
      }
    };
    const chosen: WorkerState[] = [];
    for (const worker of [...residents].sort((a, b) => a.lastUse - b.lastUse)) {
      if (!worker.devices.some((device) => excessOf(device) > 0)) continue;
      shift(worker, -1);
      chosen.push(worker);
    }
    const offload = new Set(chosen);
    for (const worker of chosen.reverse()) {
      shift(worker, 1);
      if (worker.devices.some((device) => excessOf(device) > 0)) shift(worker, -1);
      else offload.delete(worker);
    }
    if (offload.size > 0) return { fits: false, offload: [...offload] };
    const fits = devices.every((device) => excessOf(device) + (leaving.get(device) ?? 0) <= 0);
    return fits ? { fits } : { fits, offload: [] };
  }

  #usedBytes(device: string): number {
    const { workers } = this.#devices.get(device) as DeviceState;
    return [...workers].reduce((sum, worker) => {
      return sum + worker.residualBytes + (worker.residency === "unloaded" ? 0 : movableBytes(worker));
    }, 0);
  }
}

export function devicesOf(workers: readonly WorkerState[]): string[] {
  return workers.length === 1
    ? [...(workers[0] as WorkerState).devices]
    : [...new Set(workers.flatMap((worker) => worker.devices))];
}

/** What an offload gives back, as far as it is known. */
function movableBytes({ residentBytes = 0, residualBytes }: WorkerState): number {
  return Math.max(0, residentBytes - residualBytes);
}

function sumBytes(workers: readonly WorkerState[]): number {
  return workers.reduce((sum, worker) => sum + (worker.residentBytes ?? 0), 0);
}
