/** What everybody spent the simulated time on: spans as the runtime's tracers record them, and their sums. */

export type SimulatedSpan = {
  readonly kind: "span";
  readonly name: string;
  readonly category: "call" | "lock-wait" | "channel-wait" | "onload" | "offload" | "compute" | "step";
  /** of virtual time, which begins at 0 */
  readonly startMs: number;
  readonly durationMs: number;
  readonly step?: number;
  readonly devices?: string[];
};

/** The spans of one worker, in the order of their ends; a span batch of `@treadle/observe`. */
export type SimulatedTrace = {
  readonly worker: string;
  readonly pid: number;
  readonly dropped: number;
  readonly records: SimulatedSpan[];
};

/** Milliseconds of one worker. Swaps within a wait for the lock are counted as swaps. */
export type WorkerTimes = { computeMs: number; swapMs: number; lockWaitMs: number; channelWaitMs: number };

export class Recorder {
  readonly #keepsSpans: boolean;
  readonly #times = new Map<string, WorkerTimes>();
  readonly #spans = new Map<string, SimulatedSpan[]>();
  readonly #computeOnDevice = new Map<string, number>();
  readonly #swapOnDevice = new Map<string, number>();
  numOnloads = 0;
  numOffloads = 0;

  constructor(keepsSpans: boolean) {
    this.#keepsSpans = keepsSpans;
  }

  record(
    worker: string,
    span: Pick<SimulatedSpan, "name" | "category" | "startMs"> & {
      readonly endMs: number;
      readonly step?: number | undefined;
      readonly devices?: readonly string[] | undefined;
    },
  ): void {
    const { name, category, startMs, endMs, step, devices = [] } = span;
    const durationMs = endMs - startMs;
    const times = this.timesOf(worker);
    if (category === "compute") {
      times.computeMs += durationMs;
      for (const device of devices) add(this.#computeOnDevice, device, durationMs);
    } else if (category === "onload" || category === "offload") {
      times.swapMs += durationMs;
      if (category === "onload") {
        this.numOnloads++;
        times.lockWaitMs -= durationMs;
      } else this.numOffloads++;
      for (const device of devices) add(this.#swapOnDevice, device, durationMs);
    } else if (category === "lock-wait") times.lockWaitMs += durationMs;
    else if (category === "channel-wait") times.channelWaitMs += durationMs;
    if (!this.#keepsSpans || (durationMs === 0 && category !== "step")) return;
    const spans = this.#spans.get(worker) ?? [];
    this.#spans.set(worker, spans);
    spans.push({
      kind: "span",
      name,
      category,
      startMs,
      durationMs,
      ...(step === undefined ? {} : { step }),
      ...(devices.length === 0 ? {} : { devices: [...devices] }),
    });
  }

  timesOf(worker: string): WorkerTimes {
    let times = this.#times.get(worker);
    if (!times) {
      times = { computeMs: 0, swapMs: 0, lockWaitMs: 0, channelWaitMs: 0 };
      this.#times.set(worker, times);
    }
    return times;
  }

  onDevice(device: string): { computeMs: number; swapMs: number } {
    return { computeMs: this.#computeOnDevice.get(device) ?? 0, swapMs: this.#swapOnDevice.get(device) ?? 0 };
  }

  traces(): SimulatedTrace[] {
    return [...this.#spans].map(([worker, records]) => ({ worker, pid: 0, dropped: 0, records }));
  }
}

function add(map: Map<string, number>, key: string, value: number): void {
  map.set(key, (map.get(key) ?? 0) + value);
}
