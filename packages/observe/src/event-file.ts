/**
 * The events of a run, one JSON object a line, as a view folds them; a dashboard reads what the terminal has seen.
 *
 * EF1 what a run needs never waits for it: a file that is full or cannot be written takes no more, and the run goes on.
 * EF2 what repeats is thinned, so a long run's file stays small: a queue is written when it changed, utilisation once in
 *     `utilisationMs`, and a progress bar once a second.
 */
import { closeSync, fstatSync, mkdirSync, openSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { redactSecrets } from "./redact.ts";

const utilisationMs = 5000;
const progressMs = 1000;

/** Decides which events of a run are kept (EF2). Pure but for what it remembers. */
export class EventThinning {
  readonly #depths = new Map<string, number>();
  #utilisationAtMs = Number.NEGATIVE_INFINITY;
  #phase: { name: string; atMs: number } | undefined;

  keeps(event: RunEvent): boolean {
    switch (event.type) {
      case "queue": {
        const changed = this.#depths.get(event.channel) !== event.depth;
        this.#depths.set(event.channel, event.depth);
        return changed;
      }
      case "utilisation":
        if (event.atMs - this.#utilisationAtMs < utilisationMs) return false;
        this.#utilisationAtMs = event.atMs;
        return true;
      case "phase": {
        const isDone = event.done !== undefined && event.done === event.total;
        const isSoon = this.#phase?.name === event.name && event.atMs - this.#phase.atMs < progressMs;
        if (isSoon && !isDone) return false;
        this.#phase = { name: event.name, atMs: event.atMs };
        return true;
      }
      default:
        return true;
    }
  }
}

export class EventWriter implements Disposable {
  readonly #thinning = new EventThinning();
  readonly #maxBytes: number;
  #descriptor: number | undefined;
  #sizeBytes = 0;

  constructor(path: string, options: { maxBytes?: number } = {}) {
    this.#maxBytes = options.maxBytes ?? 128 * 2 ** 20;
    try {
      mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
      this.#descriptor = openSync(path, "a", 0o600);
      this.#sizeBytes = fstatSync(this.#descriptor).size;
      // A line that a killed runner left half written ends here.
      if (this.#sizeBytes > 0) this.#append("\n");
    } catch {
      this.#descriptor = undefined; // EF1
    }
  }

  write(event: RunEvent): void {
    if (this.#descriptor === undefined || !this.#thinning.keeps(event)) return;
    this.#append(`${redactSecrets(JSON.stringify(event, nonFinite))}\n`);
  }

  #append(text: string): void {
    const line = Buffer.from(text);
    if (this.#sizeBytes + line.length > this.#maxBytes) return;
    try {
      for (let done = 0; done < line.length; ) done += writeSync(this.#descriptor as number, line, done);
      this.#sizeBytes += line.length;
    } catch {
      this.close(); // EF1
    }
  }

  close(): void {
    if (this.#descriptor !== undefined) closeSync(this.#descriptor);
    this.#descriptor = undefined;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** JSON lacks them, and a diverged loss must be seen. */
const nonFinite = (_: string, value: unknown): unknown =>
  typeof value === "number" && !Number.isFinite(value) ? { nonFinite: String(value) } : value;

/** An event's line; undefined where it is damaged. What it says is to be checked by `RunEvent`. */
export function parseEventLine(text: string): unknown {
  try {
    return JSON.parse(text, (_, value: unknown) =>
      typeof value === "object" && value !== null && "nonFinite" in value ? Number(value.nonFinite) : value,
    );
  } catch {
    return undefined;
  }
}
