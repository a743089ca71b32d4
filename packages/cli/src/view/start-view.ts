/** Chooses how a run is shown: live on a terminal, else plain lines; nothing on standard output under `--json`. */
import type { RunEvent } from "@treadle/contracts";
import { fold, initialState, type RunState } from "@treadle/dashboard/view";
import { openLiveView } from "./live.ts";
import { renderFrame } from "./live-frame.ts";
import { PlainLines } from "./plain.ts";
import { printableEvent } from "./printable-event.ts";

export interface View {
  readonly onEvent: (event: RunEvent) => void;
  /** Something that this process says, shown like a worker's warning. */
  notice(text: string): void;
  /** The run as its events so far have it. */
  state(): RunState;
  /** Draws the end and gives the terminal back; closing twice is closing once. */
  close(): void;
}

/** Whether frames can be drawn over one another there. */
export const isLiveTerminal = (stream: NodeJS.WriteStream, isPlain: boolean): boolean =>
  stream.isTTY === true && !isPlain && process.env.TERM !== "dumb" && !process.env.CI;

export function startView(options: { json: boolean; plain: boolean }): View {
  const stream = options.json ? process.stderr : process.stdout;
  let state = initialState;
  const live = isLiveTerminal(stream, options.plain)
    ? openLiveView(stream, (frame) => renderFrame(state, frame))
    : undefined;
  const plain = live ? undefined : new PlainLines();
  const onEvent = (said: RunEvent) => {
    const event = printableEvent(said);
    state = fold(state, event);
    live?.update();
    for (const line of plain?.lines(event, state) ?? []) stream.write(`${line}\n`);
  };
  return {
    onEvent,
    notice: (line) => onEvent({ type: "log", atMs: Date.now(), worker: "treadle", line, level: "warn" }),
    state: () => state,
    close: () => live?.close(),
  };
}
