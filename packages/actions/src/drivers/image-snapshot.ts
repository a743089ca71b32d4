import { TreadleError } from "@treadle/contracts";
import type { DockerEngine } from "./docker-engine.ts";
import type { Snapshot } from "./sandbox.ts";

/** An image made of a container. */
export class ImageSnapshot implements Snapshot {
  readonly image: string;
  readonly bytes: number;
  readonly #engine: DockerEngine;

  constructor(engine: DockerEngine, image: string, bytes: number) {
    this.#engine = engine;
    this.image = image;
    this.bytes = bytes;
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
