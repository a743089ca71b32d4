/**
 * A run whose stages are drawn: rollout with a tail, tools that need no device, and training. A draw depends on the seed,
 * the run and the step alone, so a run has the same stages alone, beside others, on fewer devices, and after a restart.
 */
import { type Plan, Profile } from "@treadle/contracts";
import { createRandom, type Random } from "@treadle/learning";
import { type BatchTimes, type BatchWork, normal } from "../durations.ts";
import { type SharedWorld, SimulatedRun } from "../simulated-run.ts";
import { type ComponentTraits, modelWorkflow } from "../workflow-model.ts";

/** Seconds of a step on all devices; the last `Sd` are standard deviations of logarithms. */
export type RunShape = {
  /** of a rank, for each of its items; work that scales with devices */
  readonly decode: number;
  /** of the longest item of a rank, which does not */
  readonly tail: number;
  readonly tailSd: number;
  readonly tools: number;
  readonly toolsSd: number;
  readonly train: number;
};

export const runShapes = {
  /** long responses of one turn */
  reasoning: { decode: 8, tail: 8, tailSd: 0.8, tools: 0, toolsSd: 0, train: 12 },
  /** waits for its tools for half of the time */
  tools: { decode: 4, tail: 3, tailSd: 0.6, tools: 12, toolsSd: 0.5, train: 6 },
} as const satisfies Record<string, RunShape>;

/**
 * How many times as long a stage takes beside one of another run, where they compute on the same device: long responses leave
 * room for others, and two trainings hardly any (JigsawRL §4.2, Figure 8).
 */
const fullInterference: Readonly<Record<string, Readonly<Record<string, number>>>> = {
  rollout: { rollout: 1.3, train: 1.2 },
  train: { rollout: 1.4, train: 1.9 },
};

/** `interference`: 1 is all of it, 0 none. */
export const slowBeside =
  (interference: number) =>
  (component: string, beside: string): number =>
    1 + interference * ((fullInterference[component]?.[beside] ?? 1) - 1);

/** How much two steps of one run differ besides tails and tools. */
const stepSd = 0.1;

export type DrawnStep = {
  /** of each rank's rollout, where it has one item */
  readonly rolloutMs: readonly number[];
  readonly toolsMs: number;
  readonly trainMs: number;
};

export type DrawnRunOptions = {
  readonly name: string;
  readonly shape: RunShape;
  /** factor of all seconds */
  readonly scale: number;
  /** on which each rank has one item of a step */
  readonly devices: number;
  readonly seed: number;
};

export type Placed = {
  readonly devices: readonly string[];
  readonly placement: "temporal" | "spatial";
  readonly maxStaleness: number;
  readonly steps: number;
  /** the run was interrupted before this one */
  readonly firstStep?: number;
  readonly keepsSpans?: boolean;
  readonly shared?: SharedWorld;
};

export class DrawnRun implements BatchTimes {
  readonly name: string;
  readonly #options: DrawnRunOptions;
  readonly #random: Random;
  readonly #steps = new Map<number, DrawnStep & { readonly decodeMs: number; readonly tailsMs: readonly number[] }>();

  constructor(options: DrawnRunOptions) {
    this.name = options.name;
    this.#options = options;
    this.#random = createRandom(options.seed).split(options.name);
  }

  step(step: number): DrawnStep {
    const { rolloutMs, toolsMs, trainMs } = this.#drawn(step);
    return { rolloutMs, toolsMs, trainMs };
  }

  batchMs({ component, step, devices, ordinals }: BatchWork): number {
    const { decodeMs, tailsMs, toolsMs, trainMs } = this.#drawn(step);
    if (component.name === "tools") return toolsMs;
    if (component.name === "train") return (trainMs * this.#options.devices) / devices;
    const tails = ordinals.map((ordinal) => tailsMs[ordinal % tailsMs.length] as number);
    return decodeMs * ordinals.length + Math.max(...tails);
  }

  simulated({
    devices,
    placement,
    maxStaleness,
    steps,
    firstStep = 1,
    keepsSpans = false,
    shared,
  }: Placed): SimulatedRun {
    const plan = this.#plan(devices, placement, maxStaleness);
    const traits: Record<string, ComponentTraits> = { rollout: { lengthSpread: 1 }, train: { gang: true } };
    if (this.#hasTools) traits["tools"] = { locks: false };
    return new SimulatedRun({
      model: modelWorkflow(plan, this.#profile(), traits),
      durations: { batchMs: (work) => this.batchMs({ ...work, step: work.step + firstStep - 1 }) },
      ...{ steps, maxStaleness, keepsSpans, shared },
      capacityOf: () => Number.MAX_SAFE_INTEGER,
      memory: new Map(devices.map((device) => [device, Number.POSITIVE_INFINITY])),
      memoryOf: () => ({ memoryBytes: 0 }),
    });
  }

  get #hasTools(): boolean {
    return this.#options.shape.tools > 0;
  }

  #drawn(step: number) {
    let drawn = this.#steps.get(step);
    if (drawn) return drawn;
    const { shape, scale, devices } = this.#options;
    const random = (part: string) => this.#random.split(part).split(step);
    const spread = (part: string, sd: number) => Math.exp(sd * normal(random(part)));
    const lengths = random("tails");
    const decodeMs = 1000 * scale * shape.decode * spread("decode", stepSd);
    const tailsMs = Array.from({ length: devices }, () => {
      return 1000 * scale * shape.tail * Math.exp(shape.tailSd * normal(lengths));
    });
    drawn = {
      decodeMs,
      tailsMs,
      rolloutMs: tailsMs.map((tailMs) => decodeMs + tailMs),
      toolsMs: 1000 * scale * shape.tools * spread("tools", shape.toolsSd),
      trainMs: 1000 * scale * shape.train * spread("train", stepSd),
    };
    this.#steps.set(step, drawn);
    return drawn;
  }

  /** What was drawn takes the place of what a profile measures. */
  #profile(): Profile {
    const names = ["rollout", ...(this.#hasTools ? ["tools"] : []), "train"];
    const batch = this.#options.devices;
    const moved = { itemsPerStep: batch, bytesPerStep: 0 };
    const channelTo = (at: number) => `to-${names[at]}`;
    const sample = { devices: 1, items: batch, seconds: 1, spread: 0, accepted: 1, rejected: 0, contended: false };
    const measured = {
      ...{ devicesPerRank: 1, minDevices: 1, maxDevices: 65536, samples: [sample], fit: null, memory: [] },
      ...{ onloadSeconds: 0, offloadSeconds: 0, serialSeconds: 0 },
    };
    const withIndex = [...names.entries()];
    return Profile.parse({
      version: 1,
      workflow: this.name,
      createdAt: "2026-01-01T00:00:00Z",
      hardware: { key: "drawn", description: "drawn" },
      graph: {
        batch,
        components: Object.fromEntries(
          withIndex.map(([at, name]) => {
            const puts = at + 1 < names.length ? [channelTo(at + 1)] : [];
            return [name, { methods: { run: { callsPerStep: 1, takes: [channelTo(at)], puts } } }];
          }),
        ),
        channels: Object.fromEntries(
          withIndex.map(([at, name]) => [
            channelTo(at),
            { producers: names.slice(at - 1, at), consumers: [name], ...moved },
          ]),
        ),
        edges: names.slice(1).map((name, i) => ({ from: names[i], to: name, channel: channelTo(i + 1), ...moved })),
        cycles: [],
      },
      components: Object.fromEntries(names.map((name) => [name, { key: name, ...measured }])),
      steps: [],
    });
  }

  #plan(devices: readonly string[], placement: "temporal" | "spatial", maxStaleness: number): Plan {
    const { decode, tail, train } = this.#options.shape;
    const isSpatial = placement === "spatial" && devices.length > 1;
    const share = Math.round((devices.length * (decode + tail)) / (decode + tail + train));
    const split = Math.max(1, Math.min(devices.length - 1, share));
    const ranks = (own: readonly string[]) => ({
      ranks: own.map((device) => ({ devices: [device], node: "virtual" })),
    });
    return {
      mode: isSpatial ? "spatial" : "temporal",
      components: {
        rollout: ranks(isSpatial ? devices.slice(0, split) : devices),
        ...(this.#hasTools ? { tools: ranks(devices.slice(0, 1)) } : {}),
        train: ranks(isSpatial ? devices.slice(split) : devices),
      },
      granularity: { default: "all", channels: {} },
      maxStaleness,
      sharing: [],
      explanation: [],
    };
  }
}
