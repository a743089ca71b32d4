/** What strikes keep away, and whether anybody could go on without it. Pure. */

/** A node is away when nothing can be started there; a server when nobody reaches it. */
export type Part = "runner" | `runner ${string}` | "pool" | `node ${number}` | `server ${number}`;

export class Absences {
  readonly #strikes = new Map<Part, number>();

  /** Until what is answered is called, also where other strikes keep the same away meanwhile. */
  begin(parts: readonly Part[]): () => void {
    for (const part of parts) this.#strikes.set(part, (this.#strikes.get(part) ?? 0) + 1);
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      for (const part of parts) this.#strikes.set(part, (this.#strikes.get(part) as number) - 1);
    };
  }

  /** `needed`: without all that one of these has, there is no step */
  isStandstill(needed: readonly (readonly Part[])[]): boolean {
    return needed.some((parts) => parts.every((part) => this.#isAway(part)));
  }

  #isAway(part: Part): boolean {
    return (this.#strikes.get(part) ?? 0) > 0;
  }
}

/** One of each at each place. */
export function placed(kind: "node" | "server", numPlaces: number): Part[] {
  return Array.from({ length: numPlaces }, (_, place): Part => `${kind} ${place}`);
}
