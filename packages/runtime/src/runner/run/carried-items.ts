/**
 * Items that a step was given and has not finished, which later steps may be given again.
 *
 * Owner of: those that wait, in the order in which they came. It is all in the journal: what each step was given, and what it
 * carries on.
 *
 * - CI1 an item that a step carries on waits until a step is given one of its id: it is neither lost nor given twice
 * - CI2 what waits after a resume is what the committed steps say, and nothing of those that are done again
 * - CI3 of items that are saved, what waits after a resume is whole, as it was after the last committed step (`CarriedFiles`)
 */
import { TreadleError } from "@treadle/contracts";
import { decodeItem, encodeItem } from "@treadle/transport";
import type { Carried } from "../../author/workflow.ts";

type JournaledStep = { readonly items: readonly string[]; readonly carried?: readonly string[] | undefined };

export class CarriedItems {
  readonly #waiting = new Map<string, unknown>();
  #numSteps = 0;
  #numGiven = 0;

  /** CI2 */
  constructor(steps: Iterable<JournaledStep>) {
    for (const { items, carried = [] } of steps) {
      this.given(items);
      for (const text of carried) {
        const item = decodeItem(Buffer.from(text, "base64"));
        this.carry(item, item);
      }
    }
  }

  get now(): Carried<unknown> {
    return { items: [...this.#waiting.values()], numSteps: this.#numSteps, numGiven: this.#numGiven };
  }

  has(id: string): boolean {
    return this.#waiting.has(id);
  }

  /** CI3: those that wait are these from now on, where the journal had less of them. */
  restored(whole: ReadonlyMap<string, unknown>): void {
    for (const [id, item] of whole) if (this.#waiting.has(id)) this.#waiting.set(id, item);
  }

  /** CI1: a step begins with these. */
  given(ids: readonly string[]): void {
    const taken = ids.filter((id) => this.#waiting.delete(id));
    if (taken.length > 0) this.#numSteps++;
    this.#numGiven += ids.length - taken.length;
  }

  /** Returns what the journal has of it. */
  carry(item: unknown, kept: unknown): string {
    const id = carriedId(item);
    if (this.#waiting.has(id))
      throw new TreadleError(
        "workflow.invalid",
        `two items called '${id}' were carried on; give each item of a run an id of its own, as \`\${step}.\${index}\``,
      );
    this.#waiting.set(id, item);
    return Buffer.from(encodeItem(kept)).toString("base64");
  }
}

export function carriedId(item: unknown): string {
  const id = (item as { id?: unknown } | null)?.id;
  if (typeof id === "string" || typeof id === "number") return String(id);
  throw new TreadleError(
    "workflow.invalid",
    `an item without an 'id' was carried on to later steps, which know it by that; give it one`,
  );
}
