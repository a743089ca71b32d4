import {
  type ReleasableTag,
  type SharedWeights,
  type TagMemory,
  TreadleError,
  type WeightLink,
  type Weights,
  type WeightTicket,
} from "@treadle/contracts";
import { type Engine, type Trainable, type WorkSums, weightsIdOf } from "@treadle/engines";
import { type StateReader, type StateWriter, Worker } from "@treadle/runtime";

/** How weights travel: `shared`, not at all, to engines that compute with the same module; `device`, in memory that the receiver maps, or as `ticket`; `ticket`, as files that it reads; `bytes`, through Node. */
export type WeightForm = "shared" | "device" | "ticket" | "bytes";

type Published =
  /** nobody has asked for them in another form yet */
  { readonly shared: SharedWeights; made?: Promise<Made> | undefined } | Made;

type Made =
  | {
      readonly shared?: undefined;
      readonly ticket: WeightTicket;
      /** or as bytes, where there is no room for it */
      file?: Promise<WeightTicket | Weights> | undefined;
      bytes?: Promise<Weights> | undefined;
    }
  | { readonly shared?: undefined; readonly ticket?: undefined; readonly weights: Weights };

/** The component of a work as pools know it. */
const componentOf = (work: string): string => work.split("@")[0] as string;

/** Of an engine worker's state; files of an engine over several processes have names of their own behind the prefix. */
export const engineFile = "engine";
const engineFilePrefix = `${engineFile}-`;
export const isEngineFile = (name: string): boolean => name === engineFile || name.startsWith(engineFilePrefix);

/**
 * A worker around one engine, whose memory is what the device lock moves. Its `setup` makes the engine on the host; the
 * engine's memory on devices is taken under the lock, from the first time on.
 */
export abstract class EngineWorker<C, E extends Engine> extends Worker<C> {
  #engine!: E;

  protected get engine(): E {
    return this.#engine;
  }
  /** One whose own process has died computes nothing any more: this process ends with it, and both start again. */
  protected set engine(engine: E) {
    this.#engine = engine;
    engine.onComputing?.(() => this.computes());
    this.devices.onBeside((works) => engine.computesBeside?.(works.map(componentOf)));
    void engine.ended?.then((error) => this.failProcess(error));
  }

  override idle(): Promise<void> | undefined {
    return this.engine.idle();
  }
  override takeWork(): WorkSums | undefined {
    return this.engine.takeWork?.();
  }
  override memoryBytes(): number {
    return this.engine.memory().loadedBytes;
  }
  override memoryTags(): readonly TagMemory[] {
    return this.engine.memory().tags ?? [];
  }
  override residualBytes(): number {
    return this.engine.memory().residentBytes;
  }
  override async load(): Promise<void> {
    await this.engine.restore();
  }
  override async onload(tags?: readonly ReleasableTag[]): Promise<void> {
    await this.engine.restore(tags);
  }
  /**
   * What a call that is over has left behind ends first. What computes for a call that goes on is none of that: its devices
   * were taken in the middle of its work, and ending that would only lose it. Throws `engine.busy` then.
   */
  override async offload(tags?: readonly ReleasableTag[]): Promise<void> {
    if (this.devices.isHeld && this.engine.idle() !== undefined) {
      const worker = `${this.component}/${this.rank}`;
      throw new TreadleError(
        "engine.busy",
        `the devices of '${worker}' were taken while its engine computes for a call that has locked them; await what the engine was asked before the call waits, or lock with { lend: "never" }`,
        { details: { worker } },
      );
    }
    if ("abort" in this.engine && typeof this.engine.abort === "function") this.engine.abort();
    await this.engine.idle();
    await this.engine.release(tags);
  }
}

/** An engine worker whose ranks train one policy together; others pull its weights. */
export abstract class TrainerWorker<C, E extends Trainable> extends EngineWorker<C, E> {
  static override readonly restart = "group";

  #published!: Published;
  #publishing: Promise<unknown> | undefined;
  #isWarned = false;

  /** whether a call has begun to sum up a gradient and has not taken its step */
  protected hasGradient = false;

  /** What a call had summed up before it was refused must not count in the next one. */
  protected async dropPartialGradient(): Promise<void> {
    if (this.hasGradient) await this.engine.setGradients(new Float32Array((await this.engine.gradients()).length));
    this.hasGradient = false;
  }

  /**
   * A call that takes optimiser steps. When it fails after one of them with what is tried again, the process ends: made again on
   * these weights, it would train twice on what they have seen.
   */
  protected async training<T>(call: () => Promise<T>): Promise<T> {
    const { policyVersion } = this.engine;
    try {
      return await call();
    } catch (error) {
      const isTriedAgain = error instanceof TreadleError && error.disposition === "retryable";
      if (isTriedAgain && this.engine.policyVersion !== policyVersion) this.failProcess(error);
      throw error;
    }
  }

  /** What the engine saves does not change, so the worker may go on while it is written. */
  override async checkpoint(state: StateWriter): Promise<void> {
    const files = this.engine.saveFiles?.();
    if (files) for (const file of files) state.write(`${engineFilePrefix}${file.name}`, file);
    else state.write(engineFile, this.engine.save());
  }
  override async restore(state: StateReader): Promise<void> {
    const names = state.names.filter((name) => name.startsWith(engineFilePrefix));
    if (names.length === 0) await this.engine.load(state.stream(engineFile));
    else if (this.engine.loadFiles) await this.engine.loadFiles(names.map((name) => state.stream(name)));
    else
      throw new TreadleError(
        "checkpoint.corrupt",
        `the state of '${this.component}' has files of '${names.length}' processes, which an engine of kind 'torch' reads and that of '${this.component}' does not; resume with the engine that has trained it`,
      );
    await this.publish();
  }

  /**
   * From now on others may have the weights as they are, also while the next gradient accumulates. An engine that publishes tickets
   * exports no bytes unless somebody asks for them. One whose module others share publishes nothing before somebody asks who does not:
   * that one gets the weights as they are by then.
   */
  protected publish(): Promise<void> {
    const publishing = this.#publish();
    this.#publishing = publishing.catch(() => {});
    return publishing;
  }

  async #publish(): Promise<void> {
    const { shared } = this.engine;
    this.#published = shared ? { shared } : await this.#make();
  }

  async #make(): Promise<Made> {
    const publication = await this.engine.publish?.();
    if (publication && "ticket" in publication) return publication;
    if (publication) this.#warnOf(publication.obstacle);
    return { weights: await this.engine.exportWeights() };
  }

  /**
   * The newest weights, or undefined when these are what the caller's engine has (`Engine.weightsId`): by a ticket where the
   * caller takes one and the engine publishes one, else as bytes.
   */
  weights(known?: string): Promise<Weights | undefined>;
  weights(known?: string, by?: WeightForm): Promise<Weights | WeightTicket | SharedWeights | undefined>;
  async weights(known?: string, by: WeightForm = "bytes"): Promise<Weights | WeightTicket | SharedWeights | undefined> {
    if (by === "shared") return this.#shared;
    while (true) {
      const published = this.#published;
      if (published.shared) {
        published.made ??= this.#make();
        const made = await published.made.finally(() => {
          published.made = undefined;
        });
        if (this.#published === published) this.#published = made;
        continue;
      }
      if (weightsIdOf(published.ticket ?? published.weights) === known) return undefined;
      if (!published.ticket) return published.weights;
      if (by === "device") return published.ticket;
      try {
        published.file ??= this.#fileOf(published.ticket);
        const file = await published.file;
        if (by === "ticket" || !("tensors" in file)) return file;
        published.bytes ??= this.engine.readTicket!(file);
        return await published.bytes;
      } catch (error) {
        published.file = undefined;
        published.bytes = undefined;
        // Newer ones have taken its place, or are about to.
        await this.#publishing;
        if (this.#published === published) throw error;
      }
    }
  }

  /** Of the weights that were published last; undefined where others share the module that has them. */
  protected get publishedId(): string | undefined {
    const published = this.#published;
    return published.shared ? undefined : weightsIdOf(published.ticket ?? published.weights);
  }

  get #shared(): SharedWeights {
    const { shared } = this.engine;
    if (shared) return shared;
    throw new TreadleError(
      "config.invalid",
      `weights of '${this.component}' were asked for by an engine that shares a trainer's module, and it shares its own with nobody; set engine.process of '${this.component}' to 'shared', or of the other to 'own'`,
    );
  }

  /** A link of this rank's engine to one more that gets these weights, or the one that it knows; undefined where newer ones have been published. */
  async offerWeights(id: string, known: string): Promise<WeightLink | undefined> {
    const published = this.#published;
    if (published.shared || !published.ticket || weightsIdOf(published.ticket) !== id) return undefined;
    return this.engine.offer?.(known);
  }

  async #fileOf(ticket: WeightTicket): Promise<WeightTicket | Weights> {
    if (!ticket.device) return ticket;
    const publication = await this.engine.writeFile!(ticket);
    if ("ticket" in publication) return publication.ticket;
    const { policyVersion, checksum: ticketChecksum } = ticket;
    const weights = await this.engine.exportWeights();
    if (weights.policyVersion === policyVersion) {
      this.#warnOf(publication.obstacle);
      return { ...weights, ticketChecksum };
    }
    throw new TreadleError(
      "disk.full",
      `weights of version '${policyVersion}' cannot leave the device: ${publication.obstacle}; make room there, or set weightsFolder of the engine`,
    );
  }

  #warnOf(obstacle: string): void {
    if (this.#isWarned) return;
    this.#isWarned = true;
    this.log.warn(`weights go through Node, which is slow for large models: ${obstacle}; set engine.weightsFolder`);
  }
}
