/**
 * Items that a step was given and has not finished, which later steps may be given again; and how far the dataset has come.
 *
 * Owner of: those that wait, in the order in which they came, and the dataset's position. It is all in the journal: what each step was
 * given, what it carries on, and where it left the dataset.
 *
 * - CI1 an item that a step carries on waits until a step is given one of its id: it is neither lost nor given twice
 * - CI2 what waits after a resume is what the committed steps say, and nothing of those that are done again
 * - CI3 of items that are saved, what waits after a resume is whole, as it was after the last committed step (`CarriedFiles`)
 * - CI4 the position that a step finds is the one that the step before it left; after a resume, the one of the last committed step: of the
 *   dataset nothing is left out, and nothing is drawn again but what no committed step was given
 */
import { TreadleError } from "@treadle/contracts";
import { decodeItem, encodeItem } from "@treadle/transport";
import { z } from "zod";
import type { Carried, Drawn, Position } from "../../author/workflow.ts";

type JournaledStep = {
  readonly items: readonly string[];
  readonly carried?: readonly string[] | undefined;
  readonly position?: Position | undefined;
};

/** So much of a position is in the journal with each step. */
export const maxPositionBytes = 2 ** 16;

export class CarriedItems {
  readonly #waiting = new Map<string, unknown>();
  #numSteps = 0;
  #numGiven = 0;
  #position: Position | undefined;

  /** CI2 */
  constructor(steps: Iterable<JournaledStep>) {
    for (const { items, carried = [], position } of steps) {
      this.given(items);
      this.left(position);
      for (const text of carried) {
        const item = decodeItem(Buffer.from(text, "base64"));
        this.carry(item, item);
      }
    }
  }

  get now(): Carried<unknown> {
    return {
      items: [...this.#waiting.values()],
      numSteps: this.#numSteps,
      numGiven: this.#numGiven,
      // CI4: a copy each time, since whoever draws may change what it is given, and the journal has this one.
      position: structuredClone(this.#position),
    };
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

  /** CI4: where a step leaves the dataset, if it says so. */
  left(position: Position | undefined): void {
    if (position !== undefined) this.#position = position;
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

/** A position as the journal will have it. Throws `workflow.invalid` for what would not be the same there. */
export function drawnOf<T>(step: number, drawn: readonly T[] | Drawn<T>): Partial<Drawn<T>> & Pick<Drawn<T>, "items"> {
  if (isList(drawn)) return { items: drawn };
  const { items, position } = drawn;
  const refuse = (what: string): TreadleError =>
    new TreadleError(
      "workflow.invalid",
      `the position that step ${step} leaves in its dataset ${what}; allowed is JSON of at most ${maxPositionBytes} bytes, such as an offset`,
    );
  if (!Array.isArray(items))
    throw new TreadleError(
      "workflow.invalid",
      `the dataset gave step ${step} '${typeof items}' as items; return a list of items, or { items, position }`,
    );
  const text = jsonOf(position);
  if (text === undefined) throw refuse(position === undefined ? "is 'undefined'" : "is no JSON");
  const bytes = Buffer.byteLength(text);
  if (bytes > maxPositionBytes) throw refuse(`has '${bytes}' bytes`);
  // A copy: what the dataset goes on to change is another position.
  return { items, position: JSON.parse(text) as Position };
}

const Json = z.json();
function jsonOf(value: unknown): string | undefined {
  try {
    return JSON.stringify(Json.parse(value));
  } catch {
    return undefined; // what contains itself, too
  }
}
const isList = <T>(drawn: readonly T[] | Drawn<T>): drawn is readonly T[] => Array.isArray(drawn);

export function carriedId(item: unknown): string {
  const id = (item as { id?: unknown } | null)?.id;
  if (typeof id === "string" || typeof id === "number") return String(id);
  throw new TreadleError(
    "workflow.invalid",
    `an item without an 'id' was carried on to later steps, which know it by that; give it one`,
  );
}
