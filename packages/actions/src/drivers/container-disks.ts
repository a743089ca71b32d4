/**
 * What containers have written, against what each may: looked at from time to time, since all of their files are walked through for
 * it. Where this process may see the engine's folders, what counts is what they take of the disk, volumes of images included; elsewhere
 * it is what the engine says, which are the lengths of files.
 */
import { execFile } from "node:child_process";
import { access, constants } from "node:fs/promises";
import { promisify } from "node:util";
import { z } from "zod";
import type { DockerEngine } from "./docker-engine.ts";
import { Rounds } from "./rounds.ts";

const run = promisify(execFile);

const usualLookMs = 5_000;
const slowestLookMs = 120_000;
/** Looking takes at most this share of the time. */
const lookingShare = 0.05;

const Sizes = z.array(z.object({ Id: z.string(), SizeRw: z.number().default(0) }));
/** of a container, as the engine describes it */
const Places = z.object({
  GraphDriver: z.object({ Data: z.object({ UpperDir: z.string().optional() }).nullish() }).nullish(),
  Mounts: z.array(z.object({ Type: z.string().optional(), Source: z.string().default("") })).default([]),
});

type Watched = {
  readonly limitBytes: number;
  /** that this process sees; empty where it sees none */
  readonly folders: readonly string[];
  readonly exceeded: (bytes: number) => void;
};

/** Where what a container writes is kept on this machine, by what the engine says of it; none where this process may not look. */
export async function foldersOf(description: unknown): Promise<readonly string[]> {
  const places = Places.safeParse(description).data;
  const own = places?.GraphDriver?.Data?.UpperDir;
  if (own === undefined || process.getuid?.() !== 0) return [];
  const volumes = places!.Mounts.filter(({ Type, Source }) => Type === "volume" && Source.startsWith("/"));
  const folders = [own, ...volumes.map(({ Source }) => Source)];
  const seen = await Promise.all(
    folders.map((folder) =>
      access(folder, constants.R_OK).then(
        () => true,
        () => false,
      ),
    ),
  );
  return seen.every(Boolean) ? folders : [];
}

export class ContainerDisks {
  readonly #engine: DockerEngine;
  readonly #session: string;
  readonly #watched = new Map<string, Watched>();
  readonly #rounds: Rounds;

  /** `session`: the label of the containers */
  constructor(engine: DockerEngine, session: string, lookMs = usualLookMs) {
    this.#engine = engine;
    this.#session = session;
    this.#rounds = new Rounds(
      () => this.#look(),
      (tookMs) => Math.max(lookMs, tookMs / lookingShare),
    );
  }

  /** Until what it returns is called; `exceeded` is called once. */
  watch(container: string, watched: Watched): () => void {
    this.#watched.set(container, watched);
    this.#rounds.start();
    return () => {
      this.#watched.delete(container);
      if (this.#watched.size === 0) this.#rounds.stop();
    };
  }

  async #look(): Promise<void> {
    const watched = [...this.#watched];
    const isSeen = (one: Watched): boolean => one.folders.length > 0;
    const told = watched.some(([, one]) => !isSeen(one)) ? await this.#toldSizes() : new Map<string, number>();
    for (const [container, one] of watched) {
      const bytes = isSeen(one) ? await takenBytes(one.folders) : told.get(container);
      if (bytes === undefined || bytes <= one.limitBytes || this.#watched.get(container) !== one) continue;
      this.#watched.delete(container);
      one.exceeded(bytes);
    }
  }

  /** Nothing where the engine does not answer: whoever needs it is told. */
  async #toldSizes(): Promise<ReadonlyMap<string, number>> {
    const { docker } = this.#engine;
    const filters = { label: [`treadle.session=${this.#session}`] };
    try {
      const listed = await this.#engine.call("list", docker.listContainers({ size: true, filters }), slowestLookMs);
      return new Map(Sizes.parse(listed).map(({ Id, SizeRw }) => [Id, SizeRw]));
    } catch {
      return new Map();
    }
  }
}

/** Of the disk. Files that go while it looks are no reason to say nothing. */
async function takenBytes(folders: readonly string[]): Promise<number | undefined> {
  const args = ["-s", "-x", "--block-size=1", "--", ...folders];
  const { stdout } = await run("du", args, { timeout: slowestLookMs }).catch((error: { stdout?: string }) => error);
  const lines = (stdout ?? "").split("\n").flatMap((line) => /^(\d+)\t/.exec(line)?.[1] ?? []);
  return lines.length === 0 ? undefined : lines.reduce((sum, bytes) => sum + Number(bytes), 0);
}
