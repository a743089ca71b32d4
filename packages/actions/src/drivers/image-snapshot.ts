import { randomUUID } from "node:crypto";
import { TreadleError } from "@treadle/contracts";
import type Docker from "dockerode";
import { z } from "zod";
import { callMs, type DockerEngine } from "./docker-engine.ts";
import { hiddenFiles } from "./docker-runtime.ts";
import { type Snapshot, tooLarge } from "./sandbox.ts";

/** at which an engine copies files, on a busy disk */
const slowestBytesPerMs = 5_000;

/**
 * Each image has a name, by which it is dropped: with an image, the engine removes those without a name that it was made on, and it
 * removes none on which another was made. So its files go when no snapshot needs them any more, in whatever order they are dropped.
 */
const repository = "treadle-snapshot";

const Sizes = z.tuple([z.object({ SizeRw: z.number().default(0) })]);
const Changes = z.array(z.object({ Path: z.string() }));

/** An image made of a container. */
export class ImageSnapshot implements Snapshot {
  readonly image: string;
  /** with those of the snapshot that the container began from, which its image is made on */
  readonly bytes: number;
  readonly #engine: DockerEngine;

  private constructor(engine: DockerEngine, image: string, bytes: number) {
    this.#engine = engine;
    this.image = image;
    this.bytes = bytes;
  }

  /**
   * The engine keeps what differs from the image that the container was made of, all of it, the system's folders too; it stops the
   * container for a moment. `mark`: a file that the engine sees where the runtime keeps none to itself.
   */
  static async of(
    engine: DockerEngine,
    container: Docker.Container,
    {
      before,
      mark,
      maxBytes,
      signal,
    }: {
      readonly before: ImageSnapshot | undefined;
      readonly mark: string | undefined;
      readonly maxBytes: number;
      readonly signal: AbortSignal;
    },
  ): Promise<ImageSnapshot> {
    const filters = { id: [container.id] };
    const listed = await engine.call("list", engine.docker.listContainers({ size: true, filters }));
    const [{ SizeRw }] = Sizes.parse(listed);
    const bytes = (before?.bytes ?? 0) + SizeRw;
    if (bytes > maxBytes) throw tooLarge(maxBytes);
    signal.throwIfAborted();
    if (mark !== undefined) {
      const changes = await engine.call("changes", container.changes());
      if (!Changes.parse(changes ?? []).some(({ Path }) => Path === mark))
        throw new TreadleError("action.invalid", hiddenFiles);
      signal.throwIfAborted();
    }
    const tag = randomUUID();
    const commit = container.commit({ pause: true, repo: repository, tag });
    await engine.call("commit", commit, callMs + SizeRw / slowestBytesPerMs);
    return new ImageSnapshot(engine, `${repository}:${tag}`, bytes);
  }

  /** Throws `action.invalid` for one of another driver. */
  static ofOwn(snapshot: Snapshot | undefined): ImageSnapshot | undefined {
    if (snapshot === undefined || snapshot instanceof ImageSnapshot) return snapshot;
    throw new TreadleError("action.invalid", "a snapshot is of another driver's sandbox; give one of this driver's");
  }

  drop(): Promise<void> {
    return this.#engine.removeImage(this.image);
  }
}
