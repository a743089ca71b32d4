/**
 * What containers have written, against what each may: looked at from time to time, since the engine walks through all of
 * their files for it.
 */
import { z } from "zod";
import type { DockerEngine } from "./docker-engine.ts";

const firstLookMs = 5_000;
const slowestLookMs = 120_000;
/** Looking takes at most this share of the engine's time. */
const lookingShare = 0.05;

const Sizes = z.array(z.object({ Id: z.string(), SizeRw: z.number().default(0) }));

type Watched = { readonly limitBytes: number; readonly exceeded: (bytes: number) => void };

export class ContainerDisks {
  readonly #engine: DockerEngine;
  readonly #session: string;
  readonly #lookMs: number;
  readonly #watched = new Map<string, Watched>();
  #next: NodeJS.Timeout | undefined;

  /** `session`: the label of the containers */
  constructor(engine: DockerEngine, session: string, lookMs = firstLookMs) {
    this.#engine = engine;
    this.#session = session;
    this.#lookMs = lookMs;
  }

  /** Until what it returns is called; `exceeded` is called once. */
  watch(container: string, limitBytes: number, exceeded: (bytes: number) => void): () => void {
    this.#watched.set(container, { limitBytes, exceeded });
    this.#next ??= this.#lookIn(this.#lookMs);
    return () => {
      this.#watched.delete(container);
      if (this.#watched.size > 0) return;
      clearTimeout(this.#next);
      this.#next = undefined;
    };
  }

  #lookIn(ms: number): NodeJS.Timeout {
    return setTimeout(() => void this.#look(), ms).unref();
  }

  async #look(): Promise<void> {
    const startedMs = performance.now();
    const { docker } = this.#engine;
    const filters = { label: [`treadle.session=${this.#session}`] };
    try {
      const listed = await this.#engine.call("list", docker.listContainers({ size: true, filters }), slowestLookMs);
      for (const { Id, SizeRw } of Sizes.parse(listed)) {
        const watched = this.#watched.get(Id);
        if (watched === undefined || SizeRw <= watched.limitBytes) continue;
        this.#watched.delete(Id);
        watched.exceeded(SizeRw);
      }
    } catch {
      // An engine that does not answer is told of by whoever needs it.
    }
    const tookMs = performance.now() - startedMs;
    this.#next = this.#watched.size > 0 ? this.#lookIn(Math.max(this.#lookMs, tookMs / lookingShare)) : undefined;
  }
}
