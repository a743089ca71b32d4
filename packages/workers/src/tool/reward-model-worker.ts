/**
 * Adds to the rewards of episodes what reward models say of them. A model is a service that is restored when an action is
 * granted its devices and stays until another needs the room (evict-on-execution, ARL-Tangram §5.3).
 *
 * Owned here: the pool, the manager of devices and the services' processes. The device lock owns accelerators: the manager divides
 * those of this rank among its services while the rank holds them. Parts of main memory are no devices of the cluster.
 *
 * RWM1 on accelerators the services run on the devices of this rank alone, and are restored and asked only while it holds their
 *     lock; when another worker needs the memory, no process of them is left.
 */
import {
  ActionPool,
  GpuManager,
  ProcessServices,
  type ServiceHost,
  type ServiceInstance,
  servicePreparation,
} from "@treadle/actions";
import { type EpisodeGroup, TreadleError } from "@treadle/contracts";
import { timeLimit } from "@treadle/contracts/time-limit";
import { createCharacterTokenizer } from "@treadle/learning";
import { type Cluster, type Sink, type Source, Worker, type WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import { cudaDevices } from "../engine.ts";
import type { RewardModelConfig } from "./reward-model-config.ts";

/** Times are means in seconds. */
export type RewardModelReport = {
  /** weighted sum of the models' scores, mean over the episodes */
  readonly modelReward: number;
  readonly judgements: number;
  /** completion time of a judgement: queueing, restore and execution together */
  readonly judgementSeconds: number;
  /** of that, evicting and restoring services */
  readonly judgementOverheadSeconds: number;
  readonly restores: number;
};

const mib = 2 ** 20;
const Scores = z.object({ scores: z.array(z.number()) });

export class RewardModelWorker extends Worker<RewardModelConfig & { readonly alphabet: string }> {
  static override readonly module: string = import.meta.url;

  #pool!: ActionPool;
  #manager!: GpuManager;
  #services!: ProcessServices;
  #decode!: (tokens: Int32Array) => string;
  #restores = 0;
  #calls = 0;

  override async setup(): Promise<void> {
    const { models, devices, memoryMiBPerDevice, memory, alphabet } = this.config;
    const accelerators = this.accelerators();
    this.#decode = createCharacterTokenizer(alphabet).decode;
    const memoryBytesPerDevice = memoryMiBPerDevice * mib;
    const services = Object.fromEntries(
      Object.entries(models).map(([name, { devices: dop, memoryMiB, restoreSeconds }]) => [
        name,
        [{ dop, memoryBytes: memoryMiB * mib, restoreSeconds }],
      ]),
    );
    this.#manager = new GpuManager({ nodes: 1, devicesPerNode: devices, memoryBytesPerDevice, services });
    const commands = Object.entries(models).map(([name, model]) => {
      const { weight: _, devices: __, memoryMiB: ___, restoreSeconds: ____, ...service } = model;
      return [name, service] as const;
    });
    this.#services = new ProcessServices({
      services: Object.fromEntries(commands),
      accelerators,
      ...(memory === "main" ? { mainMemoryBytes: memoryBytesPerDevice } : {}),
      onLost: (instance) => this.#manager.lost(instance),
    });
    const prepare = servicePreparation(this.#manager, this.#tracedServices());
    this.#pool = new ActionPool({ managers: [this.#manager], prepare });
  }

  override async teardown(): Promise<void> {
    await this.#pool.close();
    await this.#services.close();
  }

  /** What of this machine each device is, where they are accelerators. */
  protected accelerators(): readonly number[] | undefined {
    if (this.config.memory === "main") return undefined;
    throw new TreadleError(
      "config.invalid",
      `memory: 'nvidia' puts the models of '${this.component}' on devices that it was not given; launch it by launchRewardModels`,
    );
  }

  /** Leaves no process of a service. */
  protected endServices(): Promise<void> {
    return this.#services.endAll();
  }

  /** When it is over, whatever its end, nothing of it runs: another may have the devices then (RWM1). */
  async score(groups: Source<EpisodeGroup>, scored: Sink<EpisodeGroup>): Promise<RewardModelReport> {
    const call = `score ${this.#calls++}`;
    try {
      return await this.#score(call, groups, scored);
    } finally {
      await this.#pool.closeTrajectory(call);
    }
  }

  async #score(call: string, groups: Source<EpisodeGroup>, scored: Sink<EpisodeGroup>): Promise<RewardModelReport> {
    const sums = { episodes: 0, reward: 0, judgements: 0, seconds: 0, overhead: 0 };
    const restoresBefore = this.#restores;
    for await (const batch of groups.batches()) {
      const texts = batch.map(({ episodes }) => episodes.map(({ tokens }) => this.#decode(tokens)));
      const added = texts.map((own) => own.map(() => 0));
      const ask = async (model: string, group: number): Promise<void> => {
        const { scores, seconds, overheadSeconds } = await this.#ask(call, model, texts[group]!);
        const { weight } = this.config.models[model]!;
        for (const [i, score] of scores.entries()) added[group]![i]! += weight * score;
        sums.judgements++;
        sums.seconds += seconds;
        sums.overhead += overheadSeconds;
      };
      await Promise.all(this.#residentsFirst().flatMap((model) => batch.map((_, group) => ask(model, group))));
      for (const own of added) for (const value of own) sums.reward += value;
      sums.episodes += added.reduce((sum, own) => sum + own.length, 0);
      const judged = batch.map((group, at) => ({
        ...group,
        episodes: group.episodes.map((episode, i) => ({ ...episode, reward: episode.reward + added[at]![i]! })),
      }));
      await scored.put(...judged);
    }
    const { judgements, seconds, overhead } = sums;
    return {
      modelReward: sums.reward / Math.max(1, sums.episodes),
      judgements,
      judgementSeconds: seconds / Math.max(1, judgements),
      judgementOverheadSeconds: overhead / Math.max(1, judgements),
      restores: this.#restores - restoresBefore,
    };
  }

  /** All of a batch for one model, then all for the next: in turns, models that do not fit together would evict one another. */
  #residentsFirst(): string[] {
    const residents = new Set(this.#manager.residents().map(({ service }) => service));
    return Object.keys(this.config.models).sort((a, b) => Number(residents.has(b)) - Number(residents.has(a)));
  }

  async #ask(trajectory: string, model: string, texts: readonly string[]) {
    const { models, path, timeoutMs } = this.config;
    // One that dies under an action is restored for the second attempt.
    const cost = { gpu: models[model]!.devices };
    const spec = { kind: model, cost, trajectory, service: model, retries: { limit: 1 } };
    const action = this.#pool.submit(spec, async ({ id, signal, why }) => {
      const instance = this.#manager.instanceOf(id)!;
      const startMs = this.tracer.now();
      const url = this.#services.url(instance) + path;
      const limits = timeLimit(timeoutMs, signal);
      const scores = await post(url, { texts }, limits).then(
        (body) => Scores.parse(body).scores,
        (cause: unknown) => {
          throw failed(model, `did not answer at ${path}: ${cause instanceof Error ? cause.message : cause}`, cause);
        },
      );
      if (scores.length !== texts.length)
        throw failed(model, `gave '${scores.length}' scores for ${texts.length} texts; it has to give one each`);
      this.#trace(`score by ${model}`, "compute", startMs, instance, { texts: texts.length, why });
      return scores;
    });
    const scores = await action.result;
    const { queueingSeconds = 0, executionSeconds = 0, overheadSeconds = 0 } = action;
    return { scores, seconds: queueingSeconds + executionSeconds + overheadSeconds, overheadSeconds };
  }

  /** As the services are, with what comes and goes on the lanes of its devices. */
  #tracedServices(): ServiceHost {
    const services = this.#services;
    return {
      freeBytes: (grant) => services.freeBytes(grant),
      evict: async (instance) => {
        const startMs = this.tracer.now();
        const end = await services.evict(instance);
        this.#trace(`evict ${instance.service}`, "offload", startMs, instance);
        return end;
      },
      restore: async (instance, signal) => {
        const startMs = this.tracer.now();
        const way = await services.restore(instance, signal);
        this.#restores++;
        this.#trace(`restore ${instance.service}`, "onload", startMs, instance);
        return way;
      },
    };
  }

  /** On the lane of every device of the chunk. */
  #trace(
    name: string,
    category: "compute" | "onload" | "offload",
    startMs: number,
    { service, dop, chunk }: ServiceInstance,
    attributes: Readonly<Record<string, string | number>> = {},
  ): void {
    const devices = Array.from({ length: chunk.size }, (_, i) => `gpu:${chunk.node}/${chunk.start + i}`);
    const place = `${chunk.node}/${chunk.start}-${chunk.start + chunk.size - 1}`;
    const about = { service, dop, chunk: place, ...attributes };
    this.tracer.complete(name, category, startMs, this.tracer.now(), { devices, attributes: about });
  }
}

/** The same on accelerators, which it is given and locks like any component (RWM1). */
export class AcceleratedRewardModelWorker extends RewardModelWorker {
  static override readonly module: string = import.meta.url;

  protected override accelerators(): readonly number[] {
    const { ids } = this.devices;
    const numbers = cudaDevices(ids);
    if (numbers.length === this.config.devices) return numbers;
    throw new TreadleError(
      "config.invalid",
      `memory: 'nvidia' takes ${this.config.devices} CUDA devices, and '${this.component}' was given '${ids.join(", ") || "none"}'; place it on as many, or say memory: main`,
    );
  }

  override memoryBytes(): number {
    return this.config.memoryMiBPerDevice * mib;
  }

  /** Also those that sleep, as engines keep a part of their memory then. */
  override offload(): Promise<void> {
    return this.endServices();
  }

  override async score(groups: Source<EpisodeGroup>, scored: Sink<EpisodeGroup>): Promise<RewardModelReport> {
    await using _ = await this.devices.lock();
    return await super.score(groups, scored);
  }
}

/** One rank, on CUDA devices or without any, as `memory` says. */
export function launchRewardModels(
  cluster: Cluster,
  config: RewardModelConfig & { readonly alphabet: string },
  name: string,
): WorkerGroup<RewardModelWorker> {
  const ranks = { fixed: 1 };
  if (config.memory === "main") return cluster.launch(RewardModelWorker, config, { name, ranks, devices: "none" });
  const { devices: devicesPerRank, memoryMiBPerDevice: memoryPerDeviceMiB } = config;
  const options = { name, ranks, deviceKind: "cuda", devicesPerRank, memoryPerDeviceMiB };
  return cluster.launch(AcceleratedRewardModelWorker, config, options);
}

async function post(url: string, body: object, signal: AbortSignal): Promise<unknown> {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), signal });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`status ${answer.status}, '${text.slice(0, 200)}'`);
  return JSON.parse(text);
}

const failed = (model: string, what: string, cause?: unknown): TreadleError =>
  new TreadleError("service.failed", `reward model '${model}' ${what}`, { cause });
