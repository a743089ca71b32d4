/** Lines of several runs at once, each with the name of its run. */
import type { RunEvent } from "@treadle/contracts";
import { fold, initialState, type RunState } from "@treadle/dashboard/view";
import { PlainLines } from "./plain.ts";
import { printableEvent } from "./printable-event.ts";
import { padCells, printable } from "./text.ts";

export class RunLines {
  readonly #print: (line: string) => void;
  readonly #columns: number;
  readonly #runs: ReadonlyMap<string, { state: RunState; readonly lines: PlainLines }>;

  constructor(runs: readonly string[], print: (line: string) => void) {
    this.#print = print;
    this.#columns = Math.max(...runs.map((run) => run.length));
    this.#runs = new Map(runs.map((run) => [run, { state: initialState, lines: new PlainLines() }]));
  }

  event(run: string, said: RunEvent): void {
    const known = this.#runs.get(run);
    if (!known) return;
    const event = printableEvent(said);
    known.state = fold(known.state, event);
    for (const line of known.lines.lines(event, known.state)) this.notice(run, line);
  }

  notice(run: string, text: string): void {
    this.#print(`${padCells(run, this.#columns)}  ${printable(text)}`);
  }
}
