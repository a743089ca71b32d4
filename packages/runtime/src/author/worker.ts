import type { EngineFacts, HostFiles, ModelWork, ReleasableTag, TagMemory, TreadleError } from "@treadle/contracts";
import type { Logger, Tracer } from "@treadle/observe";
import { currentCall } from "./call/call-context.ts";
import type { DeviceLock } from "./device-lock.ts";
import type { Messenger } from "./messages/messenger.ts";
import type { RankSizer } from "./rank-sizer.ts";
import type { StateReader, StateWriter } from "./state/state.ts";

/** Files that a worker leaves in its run's folder, for people and reports. */
export type Artifacts = {
  /**
   * Writes `<run>/artifacts/<name>`, whole or not at all, replacing one of that name; from any node, since the runner
   * writes it. Names are words of letters, digits, `.`, `_` and `-`, with `/` between folders. Throws `artifact.refused`
   * for other names, more than 8 MiB, or more than 256 MiB in a run.
   */
  write(name: string, data: string | Uint8Array): Promise<void>;
};

/** What a rank has learned to predict of its workflow, kept from run to run in `.treadle/predictors/` of the runner's project. */
export type Predictors = {
  /** what this rank kept last, or where it has kept nothing, the first rank; undefined where there is none either */
  read(): Promise<{ readonly path: string; readonly text: string } | undefined>;
  /** Replaces what was kept, whole or not at all. Throws `artifact.refused` for more than 8 MiB. */
  write(text: string): Promise<void>;
};

/** What a rank saw of a step, for the sizer of its class (`static degrees`). */
export type Sizing = {
  /** Replaces what it reported of that step. */
  report(step: number, report: unknown): Promise<void>;
};

/** Everything a worker is told about itself; built by its host, passed to the constructor. */
export type WorkerContext<C> = {
  readonly config: C;
  readonly runId: string;
  /** that its process is on */
  readonly node: string;
  readonly component: string;
  readonly rank: number;
  /** may change between steps, where the class `resizes` */
  readonly worldSize: number;
  /** devices of each rank of the group, in their order; may change as `worldSize` does */
  readonly rankDevices: readonly number[];
  readonly seed: number;
  readonly log: Logger;
  readonly devices: DeviceLock;
  readonly messages: Messenger;
  /** Seconds of a region of the current call, reported with its reply. */
  readonly timer: (name: string) => Disposable;
  /** spans of the worker's own, beside those of its calls and timers */
  readonly tracer: Tracer;
  readonly artifacts: Artifacts;
  readonly predictors: Predictors;
  readonly sizing: Sizing;
  /** names for files in memory that other processes of the host read; undefined where the host has none */
  readonly hostFiles?: HostFiles | undefined;
  /** a module of the project, by its path from the project's root */
  readonly loadModule: (path: string) => Promise<Record<string, unknown>>;
  /** the step that the call under way belongs to */
  readonly step?: () => number | undefined;
  /** ends the process with that reason */
  readonly failProcess: (error: TreadleError) => void;
};

/** The class of a worker, as `cluster.launch` takes it. */
export type WorkerClass<W> = {
  new (context: WorkerContext<ConfigOf<W>>): W;
  readonly name: string;
  readonly module?: string | undefined;
  readonly restart: "rank" | "group";
  readonly saves: readonly string[];
  readonly savesOn: "first-rank" | "every-rank";
  readonly replays: readonly string[];
  readonly resizes: boolean;
  checkConfig(config: unknown): void;
  keepsDevices(config: unknown, numRanks: number): boolean;
  degrees(config: unknown): readonly number[] | RankSizer | undefined;
  readonly modelWork: ModelWork | undefined;
  engineFacts(config: unknown): EngineFacts | undefined;
};

/** The configuration that a worker's class takes. */
export type ConfigOf<W> = W extends Worker<infer C> ? C : never;

/** A worker class of which only the common part matters. */
export type AnyWorkerClass = WorkerClass<Worker<unknown>>;

/**
 * One component's work; one instance is one process, a rank. Its public async methods are callable on the group.
 *
 * Calls of the workflow run one at a time, in the order in which they were made. Calls of other workers run at once, beside
 * whatever runs: such a method reads what is consistent between two awaits, and changes nothing that a running one uses.
 */
export abstract class Worker<C = unknown> {
  /** `import.meta.url` of the defining module; needed only when the workflow module does not export the class. */
  static readonly module: string | undefined = undefined;
  /**
   * What a rank's death costs its group. `rank`: the others go on. `group`: all ranks start again from the last saved
   * state, because they hold one state together (data-parallel trainers).
   */
  static readonly restart: "rank" | "group" = "rank";
  /** Methods that change state worth keeping: `checkpoint` runs after each, and what it writes outlives the process. */
  static readonly saves: readonly string[] = [];
  /**
   * Which ranks save. `first-rank`: all ranks hold the same state, and each restores what rank 0 has saved. `every-rank`: each
   * holds a part of it, saves that, and restores it; `restart` is `"group"` then, and calls that save go to all ranks.
   */
  static readonly savesOn: "first-rank" | "every-rank" = "first-rank";
  /** Methods whose last successful call is made again on a restarted rank before it gets other work. */
  static readonly replays: readonly string[] = [];

  /**
   * Ranks that keep their devices go on when their group grows or shrinks between two steps. Only for workers that keep
   * nothing between calls which depends on `worldSize`, such as a share of something: they see another one then.
   */
  static readonly resizes: boolean = false;

  /**
   * Throws `config.invalid` for what no rank could work with. `cluster.launch` calls it, so that `treadle validate` and a run
   * say so before a process starts.
   */
  static checkConfig(_config: unknown): void {}

  /**
   * Whether its calls lock their devices with `lend: "never"`. No plan then bounds a channel so that it takes turns with others on
   * them chunk by chunk: it would keep them, and wait for room that nobody could make.
   */
  static keepsDevices(_config: unknown, _numRanks: number): boolean {
    return false;
  }

  /**
   * Devices that each of its ranks spans, in order, where its configuration says so: as many ranks are launched, instead of
   * equal ones. Or what decides them between steps, of a class that `resizes`.
   */
  static degrees(_config: unknown): readonly number[] | RankSizer | undefined {
    return undefined;
  }

  /**
   * What its time goes into, where that is a model's: by it, `treadle plan --model` estimates the component on devices that nobody
   * has measured. Undefined: its times stay those that were measured.
   */
  static readonly modelWork: ModelWork | undefined = undefined;

  /**
   * What its configuration says of its engine: by it, profiles say which model they have measured, and plans how its weights travel.
   * Undefined: nothing is said of either.
   */
  static engineFacts(_config: unknown): EngineFacts | undefined {
    return undefined;
  }

  readonly config: C;
  readonly runId: string;
  /** The node that its process is on, as plans call it: `node:0` without node agents. */
  readonly node: string;
  readonly component: string;
  readonly rank: number;
  readonly seed: number;
  readonly log: Logger;
  /** This rank's devices: `await using _ = await this.devices.lock()` for exclusive use. */
  readonly devices: DeviceLock;
  /** `send`, `recv`, `broadcastTo`, `broadcastFrom`, `answer` with any worker of the run; `broadcast`, `gather`, `allReduceSum`, `rendezvous` with the group's ranks. */
  readonly messages: Messenger;
  /** For what a timer cannot say, such as work that overlaps or ran elsewhere. */
  readonly tracer: Tracer;
  /** `await this.artifacts.write("episodes/1.json", text)`: files in the run's folder that the run itself does not need. */
  readonly artifacts: Artifacts;
  /** `await this.predictors.write(text)`: what it has learned, for later runs; no run depends on it. */
  readonly predictors: Predictors;
  /** `await this.sizing.report(step, report)`: by what its ranks report, a sizer decides how many devices each of them spans. */
  readonly sizing: Sizing;
  /** For what its processes hand to others of the host; removed with this process. Undefined where the host has no such folder. */
  readonly hostFiles: HostFiles | undefined;
  readonly #context: WorkerContext<C>;

  constructor(context: WorkerContext<C>) {
    this.#context = context;
    this.config = context.config;
    this.runId = context.runId;
    this.node = context.node;
    this.component = context.component;
    this.rank = context.rank;
    this.seed = context.seed;
    this.log = context.log;
    this.devices = context.devices;
    this.messages = context.messages;
    this.tracer = context.tracer;
    this.artifacts = context.artifacts;
    this.predictors = context.predictors;
    this.sizing = context.sizing;
    this.hostFiles = context.hostFiles;
  }

  /** How many ranks the group has. */
  get worldSize(): number {
    return this.#context.worldSize;
  }

  /** How many devices each rank of the group has, in their order. */
  get rankDevices(): readonly number[] {
    return this.#context.rankDevices;
  }

  /** The step that the call under way belongs to; undefined outside of steps. */
  get step(): number | undefined {
    return this.#context.step?.();
  }

  /**
   * Runs once before any call, on all ranks of the group at once: messages and collectives work in it. It takes no memory
   * on devices, which others may be using. Ranks that need sockets of their own get an address and a port by
   * `messages.rendezvous`. A class whose ranks meet here or in `load` has `restart = "group"`, since a rank
   * that starts alone would meet nobody.
   */
  async setup(): Promise<void> {}
  /**
   * Runs once after `setup`, under the device lock, which the ranks of the group that come up are granted together: where
   * memory on devices is taken for the first time. `restore` follows. What `memoryBytes` says before is an estimate; where
   * that is 0, nobody else is loaded meanwhile. A call that holds devices does not call a worker which loads on them: one that
   * starts again would wait for them, and the call for it. Ask first, then lock, as `pullWeights` does.
   */
  async load(): Promise<void> {}
  /** Runs once at an orderly end. */
  async teardown(): Promise<void> {}
  /**
   * Brings the worker's memory back to its devices; returns before a lock is granted (L4). `tags`: of a worker whose `memoryTags` tell
   * any, which of them; without, all.
   */
  async onload(_tags?: readonly ReleasableTag[]): Promise<void> {}
  /** Frees the memory of the worker's devices, or what has these tags; called only when another worker needs it (L4). */
  async offload(_tags?: readonly ReleasableTag[]): Promise<void> {}
  /**
   * What computes on the worker's devices beside its calls, such as an engine that decodes while a call waits in `take`:
   * undefined when nothing does, otherwise resolves when that is so. Devices are lent in between only (`devices.lock`).
   */
  idle(): Promise<void> | undefined {
    return undefined;
  }
  /**
   * Said when something begins to compute of which `idle` tells by then, in the call that it computes for. That is busy while it does,
   * also where it waits for items, credit or others meanwhile; unsaid, `idle` is asked where a wait begins or ends. Engine workers say it.
   */
  protected computes(): void {
    currentCall()?.meter?.computes();
  }
  /**
   * What its engine has computed since this was asked last: forward passes, tokens of all of them, and milliseconds. Undefined where
   * it does not count: then the time for which a call holds the devices counts as one pass. A pool measures by it how much slower
   * runs are beside each other. `isEmulated`: its milliseconds are of a profile, so other processes do not disturb them.
   */
  takeWork():
    | { readonly passes: number; readonly tokens: number; readonly ms: number; readonly isEmulated?: true }
    | undefined {
    return undefined;
  }
  /** Bytes that the worker occupies on each of its devices while loaded. */
  memoryBytes(): number {
    return 0;
  }
  /**
   * What of `memoryBytes` can leave its devices by itself, and how long that takes. None: it is freed and brought back as a whole. The
   * rest, and what no tag accounts for, stays.
   */
  memoryTags(): readonly TagMemory[] {
    return [];
  }
  /**
   * Bytes that stay on each of its devices once `offload` has returned, such as contexts and buffers, what it was not to free included:
   * nobody else is given them. Measured where that is possible, for the next lock is granted by it.
   */
  residualBytes(): number {
    return 0;
  }
  /** Writes what a restart needs; nothing when there is nothing: `state.write("total", String(this.total))`. */
  async checkpoint(_state: StateWriter): Promise<void> {}
  /** Takes back what `checkpoint` has written: `this.total = Number(await state.text("total"))`. */
  async restore(_state: StateReader): Promise<void> {}

  /**
   * Ends this process with that reason: for what no call can mend, such as an engine whose own process has died. After an error
   * that is retryable, the rank starts again as it does after any death, and its calls with it; another one fails the run.
   */
  protected failProcess(error: TreadleError): void {
    this.#context.failProcess(error);
  }

  /** A model has sampled so many tokens after a prompt: profiles say of how long sequences they are. */
  protected sampled(promptTokens: number, responseTokens: number): void {
    currentCall()?.meter?.sampled(promptTokens, responseTokens);
  }

  /**
   * What a module of the project exports, in JavaScript or TypeScript, by its path from the project's root: for code that the
   * configuration names. Throws `worker.load-failed`, on a node also for what is outside of its project.
   */
  loadModule(path: string): Promise<Record<string, unknown>> {
    return this.#context.loadModule(path);
  }

  /** `using _ = this.timer("decode")`: adds the region's time to the call's timers. */
  timer(name: string): Disposable {
    return this.#context.timer(name);
  }
}

/** The names of the public async methods that a class adds to `Worker`. */
export function methodNames(workerClass: AnyWorkerClass): string[] {
  const names = new Set<string>();
  let prototype = (workerClass as unknown as { prototype: object | null }).prototype;
  while (prototype && prototype !== Worker.prototype && prototype !== Object.prototype) {
    for (const [name, property] of Object.entries(Object.getOwnPropertyDescriptors(prototype))) {
      if (name === "constructor" || typeof property.value !== "function") continue;
      if (!(name in Worker.prototype)) names.add(name);
    }
    prototype = Object.getPrototypeOf(prototype);
  }
  return [...names].sort();
}
