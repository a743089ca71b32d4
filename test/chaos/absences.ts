/** What strikes keep away, and whether anybody could go on without it. Pure. */

/** A node is away when nothing can be started there; a server when nobody reaches it. */
export type Part = "runner" | `node ${number}` | `server ${number}`;

export class Absences {
  readonly #numPlaces: number;
  readonly #strikes = new Map<Part, number>();

  /** With a node and a server at each place. */
  constructor(numPlaces: number) {
    this.#numPlaces = numPlaces;
  }

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

  /** Without the runner, without any node, and without any server, there is no step. */
  get isStandstill(): boolean {
    const numAway = (kind: "node" | "server") =>
      Array.from({ length: this.#numPlaces }, (_, place) => this.#isAway(`${kind} ${place}`)).filter(Boolean).length;
    return this.#isAway("runner") || numAway("node") === this.#numPlaces || numAway("server") === this.#numPlaces;
  }

  #isAway(part: Part): boolean {
    return (this.#strikes.get(part) ?? 0) > 0;
  }
}
