/** Past this many different texts of a kind, new ones share one. */
const maxTexts = 20_000;
const other = "(other)";

/** Texts by number, in the order in which they came. */
export class Texts {
  readonly list: string[] = [];
  readonly #numbers = new Map<string, number>();

  of(text: string): number {
    const known = this.#numbers.get(text);
    if (known !== undefined) return known;
    if (this.list.length >= maxTexts && text !== other) return this.of(other);
    this.#numbers.set(text, this.list.push(text) - 1);
    return this.list.length - 1;
  }

  add(texts: readonly string[]): void {
    for (const text of texts) this.#numbers.set(text, this.list.push(text) - 1);
  }
}
