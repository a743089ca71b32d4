/** What of a server's memory is on the devices that it shares, and what moving it took. */
import { type Clock, ReleasableTag, type TagMemory } from "@treadle/contracts";
import type { EngineMemory } from "../engine.ts";
import { type ServerTag, serverTags } from "./server-protocol.ts";

export type ServerMemoryOptions = {
  readonly sharedBytes: number;
  /** of its weights, where these are released alone: what else it shares leaves with its cache; undefined: it is one piece */
  readonly weightsBytes: number | undefined;
  readonly clock: Clock;
};

export class ServerMemory {
  readonly #options: ServerMemoryOptions;
  readonly #there = new Set<ServerTag>();
  /** that the last move took; of both together, that counts as what the weights take */
  readonly #seconds = { release: { weights: 0, cache: 0 }, restore: { weights: 0, cache: 0 } };

  constructor(options: ServerMemoryOptions) {
    this.#options = options;
  }

  get isWhole(): boolean {
    return this.#there.size === serverTags.length;
  }

  has(tag: ServerTag): boolean {
    return this.#there.has(tag);
  }

  get now(): EngineMemory {
    const { sharedBytes: loadedBytes, weightsBytes } = this.#options;
    if (weightsBytes === undefined) return { residentBytes: this.isWhole ? loadedBytes : 0, loadedBytes, hostBytes: 0 };
    const sizes = { weights: weightsBytes, cache: loadedBytes - weightsBytes };
    const { release, restore } = this.#seconds;
    const tags = serverTags.map((tag): TagMemory => {
      return { tag, bytes: sizes[tag], releaseSeconds: release[tag], restoreSeconds: restore[tag] };
    });
    const residentBytes = [...this.#there].reduce((sum, tag) => sum + sizes[tag], 0);
    return { residentBytes, loadedBytes, tags, hostBytes: 0 };
  }

  /** Which tags move where these are asked for: of one piece all do. */
  movedWith(tags: readonly ReleasableTag[] = ReleasableTag.options): readonly ReleasableTag[] {
    return this.#options.weightsBytes === undefined && tags.length > 0 ? ReleasableTag.options : tags;
  }

  /** Of these tags, those that are there, or those that are not. */
  among(tags: readonly ReleasableTag[], isThere: boolean): readonly ServerTag[] {
    return serverTags.filter((tag) => tags.includes(tag) && this.#there.has(tag) === isThere);
  }

  /** `act` is given what to name to the server, undefined for all; `follow` is part of what the move takes. */
  async move(
    kind: "release" | "restore",
    tags: readonly ServerTag[],
    act: (named: readonly ServerTag[] | undefined) => Promise<void>,
    follow: () => Promise<void> = async () => {},
  ): Promise<void> {
    const { clock, weightsBytes } = this.#options;
    const startMs = clock.now();
    await act(weightsBytes === undefined ? undefined : tags);
    for (const tag of tags) {
      if (kind === "release") this.#there.delete(tag);
      else this.#there.add(tag);
    }
    await follow();
    this.#seconds[kind][tags[0] as ServerTag] = (clock.now() - startMs) / 1000;
  }
}
