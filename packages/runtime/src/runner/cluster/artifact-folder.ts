/** What workers leave in the run's folder for people: a few files of bounded size below one folder, and nowhere else. */
import { mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import writeFileAtomic from "write-file-atomic";
import { guardDisk } from "../../author/guard-disk.ts";

const maxFileBytes = 8 * 2 ** 20;
const maxTotalBytes = 256 * 2 ** 20;
const maxNameLength = 200;
/** No part begins with a dot, so none leads upwards and none is hidden. */
const allowedName = /^[A-Za-z0-9_-][A-Za-z0-9._-]*(\/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$/;

export class ArtifactFolder {
  readonly #path: string;
  readonly #sizes = new Map<string, number>();

  constructor(path: string) {
    this.#path = path;
  }

  /** Throws `artifact.refused`, or `disk.full`. */
  async write(worker: string, name: string, data: Uint8Array): Promise<void> {
    const refuse = (what: string) => {
      throw new TreadleError("artifact.refused", what, { origin: { worker } });
    };
    if (name.length > maxNameLength || !allowedName.test(name)) {
      refuse(
        `'${worker}' wants to write artefact '${name.slice(0, maxNameLength)}'; a name is at most ${maxNameLength} letters, digits, '.', '_' and '-', no part of it begins with '.', and '/' separates parts`,
      );
    }
    const others = [...this.#sizes].reduce((sum, [other, bytes]) => sum + (other === name ? 0 : bytes), 0);
    if (data.byteLength > maxFileBytes || others + data.byteLength > maxTotalBytes) {
      refuse(
        `artefact '${name}' of '${worker}' has '${data.byteLength}' bytes beside '${others}' of others; a file may have ${maxFileBytes}, all of a run ${maxTotalBytes}: write less, or fewer`,
      );
    }
    this.#sizes.set(name, data.byteLength);
    const path = join(this.#path, name);
    await guardDisk(path, async () => {
      await mkdir(dirname(path), { recursive: true });
      await writeFileAtomic(path, Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    });
  }
}
