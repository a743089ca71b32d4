/** A worker around an emulated engine on a device whose memory is enforced over processes. */
import { EmulatedDevice, EmulatedEngine } from "@treadle/engines";
import { Worker } from "@treadle/runtime";

export type EmulatedConfig = {
  /** the file by which processes share the device */
  readonly device: string;
  readonly deviceBytes: number;
  readonly residentBytes: number;
  readonly fails?: string;
};

const sampling = { maxTokens: 1e6, temperature: 1, stopTokens: [0], seed: 1 };

export class EmulatedWorker extends Worker<EmulatedConfig> {
  static override readonly module: string = import.meta.url;
  #engine: EmulatedEngine | undefined;
  readonly swaps: string[] = [];

  override async load(): Promise<void> {
    this.swaps.push("load");
    const { device, deviceBytes, residentBytes, fails } = this.config;
    if (fails !== undefined) throw new Error(fails);
    const devices = [new EmulatedDevice({ name: "gpu:0", capacityBytes: deviceBytes, path: device })];
    const component = `${this.component}/${this.rank}`;
    this.#engine = EmulatedEngine.create({ residentBytes }, { devices, component });
  }
  override memoryBytes(): number {
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

  /** Uses its devices, which throws when it is not loaded. */
  async work(): Promise<string[]> {
    await using _ = await this.devices.lock();
    await this.#engine?.generate([Int32Array.of(1)], sampling);
    return this.swaps;
  }
}
