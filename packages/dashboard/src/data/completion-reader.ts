/** The sampled episodes of a run: a short line of each in memory, the rest read again when one is opened. */
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { CompletionRecord, completionFolder } from "@treadle/contracts";
import { LineTail } from "@treadle/observe";
import type { EpisodeLine } from "../view/episodes.ts";

const maxEpisodes = 200_000;
const maxPreview = 120;

type Place = { readonly file: string; readonly line: number };

export class CompletionReader {
  readonly #folder: string;
  /** file name to what it was when it was read */
  readonly #read = new Map<string, string>();
  #lines: EpisodeLine[] = [];
  #places: Place[] = [];
  #numDamaged = 0;
  #isRead = false;
  #refreshing: Promise<void> | undefined;

  constructor(folder: string) {
    this.#folder = join(folder, "artifacts", completionFolder);
  }

  /** in the order in which they were found: files are written once */
  get lines(): readonly EpisodeLine[] {
    return this.#lines;
  }
  get version(): number {
    return this.#lines.length;
  }
  /** Somebody has looked at them. */
  get isRead(): boolean {
    return this.#isRead;
  }
  get numDamaged(): number {
    return this.#numDamaged;
  }

  /** A second call waits for the first. */
  refresh(): Promise<void> {
    this.#isRead = true;
    this.#refreshing ??= this.#refresh().finally(() => {
      this.#refreshing = undefined;
    });
    return this.#refreshing;
  }

  async #refresh(): Promise<void> {
    const names = (await readdir(this.#folder).catch(() => [])).filter((name) => name.endsWith(".jsonl")).sort();
    for (const file of names) {
      const found = await stat(join(this.#folder, file)).catch(() => undefined);
      const seen = found ? `${found.size} ${found.mtimeMs}` : "";
      if (seen === "" || this.#read.has(file)) continue;
      this.#read.set(file, seen);
      await this.#index(file);
    }
  }

  async #index(file: string): Promise<void> {
    const tail = new LineTail(join(this.#folder, file));
    let line = 0;
    for (let hasMore = true; hasMore; ) {
      const read = await tail.read();
      hasMore = read.hasMore;
      for (const { text } of read.lines) {
        const record = recordOf(text);
        if (record === undefined) this.#numDamaged++;
        else if (this.#lines.length < maxEpisodes) {
          this.#lines.push(lineOf(record, this.#lines.length));
          this.#places.push({ file, line });
        }
        line++;
      }
    }
  }

  async open(index: number): Promise<CompletionRecord | undefined> {
    const place = this.#places[index];
    if (place === undefined) return undefined;
    const tail = new LineTail(join(this.#folder, place.file));
    let line = 0;
    for (let hasMore = true; hasMore; ) {
      const read = await tail.read();
      hasMore = read.hasMore;
      for (const { text } of read.lines) if (line++ === place.line) return recordOf(text);
    }
    return undefined;
  }
}

function recordOf(text: string): CompletionRecord | undefined {
  try {
    return CompletionRecord.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}

function lineOf(
  { step, worker, promptId, reward, length, turns, finishReason }: CompletionRecord,
  index: number,
): EpisodeLine {
  const prompt = turns.find(({ by }) => by === "prompt")?.text ?? "";
  const said = turns.filter(({ by }) => by === "policy").map(({ text }) => text);
  return {
    ...{ index, step, worker, promptId, reward, length, finishReason },
    numCalls: turns.filter(({ by }) => by === "tool").length,
    prompt: prompt.slice(0, maxPreview),
    text: said.join(" … ").slice(0, maxPreview),
  };
}
