/** Lines of several runs at once, each with the name of its run. */
import type { Writable } from "node:stream";
import type { RunEvent } from "@treadle/contracts";
import { fold, initialState, type RunState } from "@treadle/dashboard/view";
import { PlainLines } from "./plain.ts";
import { padCells } from "./text.ts";

export class RunLines {
  readonly #out: Writable;
  readonly #columns: number;
  readonly #runs: ReadonlyMap<string, { state: RunState; readonly lines: PlainLines }>;

  constructor(runs: readonly string[], out: Writable) {
    this.#out = out;
    this.#columns = Math.max(...runs.map((run) => run.length));
    this.#runs = new Map(runs.map((run) => [run, { state: initialState, lines: new PlainLines() }]));
  }

  event(run: string, event: RunEvent): void {
    const known = this.#runs.get(run);
    if (!known) return;
    known.state = fold(known.state, event);
    for (const line of known.lines.lines(event, known.state)) this.notice(run, line);
  }

  notice(run: string, text: string): void {
    this.#out.write(`${padCells(run, this.#columns)}  ${text}\n`);
  }
}
