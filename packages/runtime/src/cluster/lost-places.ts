/** Where ranks go whose node is gone: back to it when it returns in time, else to another that has room. */
import { type DeviceSpec, type RuntimeConfig, TreadleError } from "@treadle/contracts";
import type { Nodes } from "./nodes.ts";
import type { Rank } from "./rank.ts";
import { relocate } from "./relocate.ts";

export type LostPlacesOptions = {
  readonly nodes: Nodes;
  readonly config: RuntimeConfig;
  /** all of the run */
  readonly ranks: () => readonly Rank[];
  /** a component's ranks hold one state together */
  readonly areMates: (component: string) => boolean;
};

export class LostPlaces {
  readonly #options: LostPlacesOptions;
  /** of each rank while it is loaded, as it said last */
  readonly #memoryBytes = new Map<string, number>();

  constructor(options: LostPlacesOptions) {
    this.#options = options;
  }

  reportMemory(worker: string, bytes: number): void {
    this.#memoryBytes.set(worker, bytes);
  }

  /**
   * Gives the rank another place, at once, so that its mates see it taken. Resolves with whether it did: not when its node
   * came back, nor when `isClosing`. Rejects with `node.lost`.
   */
  async replace(rank: Rank, isClosing: () => boolean): Promise<boolean> {
    const { nodes, config } = this.#options;
    const { startTimeoutMs } = config.supervision;
    const lost = rank.node;
    if (await nodes.until(() => nodes.has(lost) || isClosing(), config.cluster.rejoinMs)) return false;
    const roomy = () => nodes.places().filter((device) => this.#hasRoom(rank, device));
    const place = () => relocate(rank.devices, roomy(), (device) => this.#ranksOn(device));
    await nodes.until(() => nodes.has(lost) || place() !== undefined || isClosing(), startTimeoutMs);
    if (nodes.has(lost) || isClosing()) return false;
    const found = place();
    if (found !== undefined) {
      rank.place = found;
      return true;
    }
    throw new TreadleError(
      "node.lost",
      `no node is left for '${rank.name}': '${lost}' is gone, and within supervision.startTimeoutMs (${startTimeoutMs} ms) no other had devices like ${rank.devices.join(", ")} with room for it; start a node agent, then 'treadle resume'`,
      { origin: { worker: rank.name, node: lost } },
    );
  }

  /** Ranks that hold one state together compute together, and must fit together; others take turns on a device. */
  #hasRoom(rank: Rank, { id, memoryBytes }: DeviceSpec): boolean {
    if (!this.#options.areMates(rank.component)) return true;
    const mates = this.#options
      .ranks()
      .filter((each) => each.component === rank.component && each !== rank && each.devices.includes(id));
    if (mates.length === 0) return true;
    const bytesOf = (each: Rank): number => this.#memoryBytes.get(each.name) ?? 0;
    return mates.reduce((sum, each) => sum + bytesOf(each), bytesOf(rank)) <= memoryBytes;
  }

  #ranksOn(device: string): number {
    return this.#options.ranks().filter((rank) => rank.devices.includes(device)).length;
  }
}
