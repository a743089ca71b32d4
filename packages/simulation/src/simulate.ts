/** What a plan does with a workflow, run on virtual time. */
import type { DeviceSpec, Plan, Profile, UtilisationShares, WorkerMemory } from "@treadle/contracts";
import { mean, TreadleError } from "@treadle/contracts";
import { Durations } from "./durations.ts";
import type { Recorder, SimulatedTrace } from "./recorder.ts";
import { type SharedWorld, SimulatedRun, type SimulatedStep } from "./simulated-run.ts";
import { type ComponentModel, type ComponentTraits, modelWorkflow, type WorkflowModel } from "./workflow-model.ts";

export type SimulationInput = {
  readonly plan: Plan;
  readonly profile: Profile;
  readonly steps: number;
  /** equal seeds give equal runs */
  readonly seed: number;
  /** whose memory is known; on others everything fits */
  readonly devices?: readonly DeviceSpec[] | undefined;
  /** `flow.capacity`, for all channels; the plan may give some less */
  readonly capacity?: number | undefined;
  /** by component, what is assumed instead of what the profile says */
  readonly traits?: Readonly<Record<string, ComponentTraits>> | undefined;
  /** keeps spans for a timeline; costs memory where ranks are many */
  readonly trace?: boolean | undefined;
};

export type SimulatedComponent = {
  readonly ranks: number;
  readonly devices: number;
  /** of the whole run, averaged over its ranks */
  readonly shares: UtilisationShares;
  /** seconds a step that its busiest rank computes */
  readonly busySeconds: number;
  readonly lockWaitSeconds: number;
  readonly channelWaitSeconds: number;
};

export type SimulatedDevice = {
  readonly device: string;
  /** shares of the whole run */
  readonly compute: number;
  readonly swap: number;
  readonly components: readonly string[];
};

export type SimulationResult = {
  readonly seed: number;
  readonly steps: readonly SimulatedStep[];
  /** of all steps, the first ones that fill a pipeline included */
  readonly stepSeconds: { readonly mean: number; readonly p50: number; readonly p95: number };
  readonly totalSeconds: number;
  readonly components: Readonly<Record<string, SimulatedComponent>>;
  readonly devices: readonly SimulatedDevice[];
  readonly swaps: { readonly onloads: number; readonly offloads: number; readonly seconds: number };
  /** the component that the busiest devices compute longest */
  readonly limit: { readonly component: string; readonly share: number; readonly why: string };
  /** empty unless asked for */
  readonly traces: readonly SimulatedTrace[];
};

const defaultCapacity = 65536;

/** Throws `problem.invalid` for what does not fit together and for plans that come to a standstill. */
export function simulate(input: SimulationInput): SimulationResult {
  const { model, run } = simulatedRun(input);
  run.execute();
  return describe(run, model, input.seed);
}

/** Ready to begin, alone or `beside` others. Throws `problem.invalid` for what does not fit together. */
export function simulatedRun(
  input: SimulationInput,
  beside?: SharedWorld,
): { readonly model: WorkflowModel; readonly run: SimulatedRun } {
  const { plan, profile, steps, seed, devices = [], capacity = defaultCapacity, traits = {}, trace = false } = input;
  if (!Number.isInteger(steps) || steps < 1)
    throw new TreadleError("problem.invalid", `steps '${steps}' is not allowed: a positive integer is`);
  if (!Number.isSafeInteger(seed))
    throw new TreadleError("problem.invalid", `seed '${seed}' is not allowed: an integer is`);
  if (!Number.isInteger(capacity) || capacity < 1)
    throw new TreadleError("problem.invalid", `capacity '${capacity}' is not allowed: a positive integer is`);
  const model = modelWorkflow(plan, profile, traits, capacity);
  const memory = new Map<string, number>();
  const known = new Map(devices.map(({ id, memoryBytes }) => [id, memoryBytes]));
  for (const { ranks } of model.components)
    for (const id of ranks.flatMap((rank) => rank.devices)) memory.set(id, known.get(id) ?? Number.POSITIVE_INFINITY);
  const run = new SimulatedRun({
    model,
    durations: new Durations(seed),
    steps,
    maxStaleness: plan.maxStaleness,
    capacityOf: (channel) => Math.min(capacity, plan.capacity?.[channel] ?? capacity),
    memory,
    memoryOf: workerMemory,
    keepsSpans: trace,
    shared: beside,
  });
  return { model, run };
}

/** Of each rank, as measured at the nearest device count; a component that was not measured needs nothing. */
export function workerMemory({ profile, numDevices }: ComponentModel): WorkerMemory {
  const [nearest] = profile.memory.toSorted(
    (a, b) => Math.abs(Math.log2(a.devices / numDevices)) - Math.abs(Math.log2(b.devices / numDevices)),
  );
  return { memoryBytes: nearest?.bytesPerDevice ?? 0, tags: nearest?.tags };
}

function describe(run: SimulatedRun, model: WorkflowModel, seed: number): SimulationResult {
  const { recorder, steps, nowMs: totalMs } = run;
  const byDevice = new Map<string, Set<string>>();
  for (const { name, ranks } of model.components) {
    for (const id of ranks.flatMap((rank) => rank.devices)) byDevice.set(id, (byDevice.get(id) ?? new Set()).add(name));
  }
  const share = (ms: number) => (totalMs > 0 ? ms / totalMs : 0);
  const devices = [...byDevice].map(([device, components]) => {
    const { computeMs, swapMs } = recorder.onDevice(device);
    return { device, compute: share(computeMs), swap: share(swapMs), components: [...components] };
  });
  const components = Object.fromEntries(
    model.components.map((component) => [
      component.name,
      describeComponent(component, recorder, totalMs, steps.length),
    ]),
  );
  const swapMs = model.components
    .flatMap(({ ranks }) => ranks)
    .reduce((sum, { worker }) => sum + recorder.timesOf(worker).swapMs, 0);
  return {
    seed,
    steps,
    stepSeconds: summarise(steps.map(({ seconds }) => seconds)),
    totalSeconds: totalMs / 1000,
    components,
    devices,
    swaps: { onloads: recorder.numOnloads, offloads: recorder.numOffloads, seconds: swapMs / 1000 },
    limit: limitOf(devices, components),
    traces: recorder.traces(),
  };
}

function describeComponent(
  { ranks, numDevices }: ComponentModel,
  recorder: Recorder,
  totalMs: number,
  numSteps: number,
): SimulatedComponent {
  const times = ranks.map(({ worker }) => recorder.timesOf(worker));
  const sum = (of: (each: (typeof times)[number]) => number) => times.reduce((total, each) => total + of(each), 0);
  const share = (of: (each: (typeof times)[number]) => number) =>
    totalMs > 0 ? Math.min(1, Math.max(0, sum(of) / (totalMs * times.length))) : 0;
  const compute = share((each) => each.computeMs);
  const transfer = share((each) => each.swapMs);
  const lockWait = share((each) => each.lockWaitMs);
  const channelWait = share((each) => each.channelWaitMs);
  const perStep = (ms: number) => ms / 1000 / numSteps;
  return {
    ranks: ranks.length,
    devices: numDevices,
    shares: {
      compute,
      transfer,
      lockWait,
      channelWait,
      idle: Math.max(0, 1 - compute - transfer - lockWait - channelWait),
    },
    busySeconds: perStep(Math.max(...times.map((each) => each.computeMs))),
    lockWaitSeconds: perStep(sum((each) => each.lockWaitMs) / times.length),
    channelWaitSeconds: perStep(sum((each) => each.channelWaitMs) / times.length),
  };
}

/** What the busiest device is busy with: shortening anything else first does not help. */
function limitOf(
  devices: readonly SimulatedDevice[],
  components: Readonly<Record<string, SimulatedComponent>>,
): SimulationResult["limit"] {
  const busiest = devices.reduce((a, b) => (b.compute + b.swap > a.compute + a.swap ? b : a));
  const component = busiest.components.reduce((a, b) =>
    (components[b]?.busySeconds ?? 0) > (components[a]?.busySeconds ?? 0) ? b : a,
  );
  const percent = (value: number) => `${Math.round(value * 100)} %`;
  const { compute, swap } = busiest;
  const share = compute + swap;
  const seconds = components[component]?.busySeconds ?? 0;
  const sharers = busiest.components.length > 1 ? `, ${seconds.toPrecision(3)} s a step of it in '${component}'` : "";
  const swapping = swap > 0.05 ? ` (${percent(swap)} of the time in swaps)` : "";
  const why =
    share < 0.5
      ? `no device is busy for more than ${percent(share)} of the time: waits between components, not one of them, set the pace; '${component}' computes longest`
      : `'${component}': its devices are busy for ${percent(share)} of the time${swapping}${sharers}`;
  return { component, share, why };
}

function summarise(seconds: readonly number[]): SimulationResult["stepSeconds"] {
  const ascending = seconds.toSorted((a, b) => a - b);
  const quantile = (q: number): number => {
    const at = q * (ascending.length - 1);
    const low = ascending[Math.floor(at)] as number;
    return low + ((ascending[Math.ceil(at)] as number) - low) * (at - Math.floor(at));
  };
  return {
    mean: mean(seconds),
    p50: quantile(0.5),
    p95: quantile(0.95),
  };
}
