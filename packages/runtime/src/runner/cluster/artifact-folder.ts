/** What workers leave in the run's folder for people: a few files of bounded size below one folder, and nowhere else. */
import { mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { CompletionRecord, completionFolder, maxSampleLength, type RunEvent, TreadleError } from "@treadle/contracts";
import writeFileAtomic from "write-file-atomic";
import { guardDisk } from "../../author/guard-disk.ts";

const maxFileBytes = 8 * 2 ** 20;
const maxTotalBytes = 256 * 2 ** 20;
const maxNameLength = 200;
/** No part begins with a dot, so none leads upwards and none is hidden. */
const allowedName = /^[A-Za-z0-9_-][A-Za-z0-9._-]*(\/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$/;

type Sample = Extract<RunEvent, { type: "sample" }>;

export class ArtifactFolder {
  readonly #path: string;
  readonly #onSample: (sample: Sample) => void;
  readonly #sizes = new Map<string, number>();

  /** `onSample`: told the first of the episodes that a rank leaves. */
  constructor(path: string, onSample: (sample: Sample) => void = () => {}) {
    this.#path = path;
    this.#onSample = onSample;
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
      await mkdir(dirname(path), { recursive: true, mode: 0o700 });
      await writeFileAtomic(path, Buffer.from(data.buffer, data.byteOffset, data.byteLength), { mode: 0o600 });
    });
    const sample = name.startsWith(`${completionFolder}/`) ? sampleOf(data) : undefined;
    if (sample) this.#onSample(sample);
  }
}

/** Of the first line; undefined for what is no episode, which is nobody's trouble but its reader's. */
function sampleOf(data: Uint8Array): Sample | undefined {
  const end = data.indexOf(0x0a);
  const line = Buffer.from(data.buffer, data.byteOffset, end < 0 ? data.byteLength : end).toString();
  let record: CompletionRecord | undefined;
  try {
    record = CompletionRecord.safeParse(JSON.parse(line)).data;
  } catch {
    return undefined;
  }
  if (record === undefined) return undefined;
  const { step, worker, reward, turns } = record;
  const written = (isPrompt: boolean) =>
    turns
      .filter(({ by }) => (by === "prompt") === isPrompt)
      .map(({ text }) => text)
      .join("")
      .slice(0, maxSampleLength);
  return { type: "sample", atMs: Date.now(), step, worker, reward, prompt: written(true), text: written(false) };
}
