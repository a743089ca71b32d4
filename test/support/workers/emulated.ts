/** A worker around an emulated engine on a device whose memory is enforced over processes. */
import { setTimeout as delay } from "node:timers/promises";
import { EmulatedDevice, EmulatedEngine } from "@treadle/engines";
import { type Sink, type Source, type StreamItem, Worker } from "@treadle/runtime";

export type EmulatedConfig = {
  /** the file by which processes share the device */
  readonly device: string;
  readonly deviceBytes: number;
  readonly residentBytes: number;
  /** that a release leaves on the device, in addition */
  readonly residualBytes?: number;
  /** that a response has; each takes 20 ms */
  readonly tokens?: number;
  readonly fails?: string;
};

const sampling = { maxTokens: 1e6, temperature: 1, stopTokens: [0], seed: 1 };

export class EmulatedWorker extends Worker<EmulatedConfig> {
  static override readonly module: string = import.meta.url;
  #engine: EmulatedEngine | undefined;
  readonly swaps: string[] = [];

  override async load(): Promise<void> {
    this.swaps.push("load");
    const { device, deviceBytes, residentBytes, residualBytes = 0, tokens = 1, fails } = this.config;
    if (fails !== undefined) throw new Error(fails);
    const devices = [new EmulatedDevice({ name: "gpu:0", capacityBytes: deviceBytes, path: device })];
    const component = `${this.component}/${this.rank}`;
    this.#engine = EmulatedEngine.create(
      { residentBytes, residualBytes, decode: { baseSeconds: 0.02 }, response: { medianTokens: tokens } },
      { devices, component },
    );
  }
  override memoryBytes(): number {
    return this.#engine?.memory().residentBytes ?? 0;
  }
  override residualBytes(): number {
    return this.#engine?.memory().residentBytes ?? 0;
  }
  override async onload(): Promise<void> {
    this.swaps.push("onload");
    await this.#engine?.restore();
  }
  override async offload(): Promise<void> {
    this.swaps.push("offload");
    await this.#engine?.release();
  }

  override idle(): Promise<void> | undefined {
    return this.#engine?.idle();
  }

  /** Uses its devices, which throws when it is not loaded. */
  async work(): Promise<string[]> {
    await using _ = await this.devices.lock();
    await this.#engine?.generate([Int32Array.of(1)], sampling);
    return this.swaps;
  }

  /** Needs more within than it has asked for. */
  async workWithin(): Promise<void> {
    await using _ = await this.devices.lock({ tags: ["weights"] });
    await using _all = await this.devices.lock();
  }

  /** Decodes each item a moment after it has come, while it takes others; resolves with how many there were. */
  async prepareAndDecode(source: Source<number>): Promise<number> {
    await using _ = await this.devices.lock();
    const running: Promise<void>[] = [];
    const work = async ({ value, commit }: StreamItem<number>) => {
      await delay(50);
      await this.#engine?.generate([Int32Array.of(value)], sampling);
      await commit();
    };
    for await (const item of source.items({ inFlight: 4 })) running.push(work(item));
    await Promise.all(running);
    return running.length;
  }

  /** Puts numbers, one after the other and long after the one before; it uses no device. */
  async putSlowly(sink: Sink<number>, numItems: number): Promise<void> {
    for (let item = 1; item <= numItems; item++) {
      await sink.put(item);
      await delay(400);
    }
  }

  /** Begins to decode, says so, and takes what it decodes next meanwhile, as continuous batching does. */
  async decodeAndTake(
    begun: Sink<number>,
    source: Source<number>,
    lend?: "idle" | "never",
  ): Promise<{ decoded: number; swaps: string[] }> {
    await using _ = await this.devices.lock({ lend });
    const numSwaps = this.swaps.length;
    const decode = (item: number) => this.#engine?.generate([Int32Array.of(item)], sampling);
    const running = [decode(1)];
    await begun.put(1);
    for await (const item of source) running.push(decode(item));
    await Promise.all(running);
    return { decoded: running.length, swaps: this.swaps.slice(numSwaps) };
  }
}
