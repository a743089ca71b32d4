/** Chooses how runs that share devices are shown: live on a terminal, else plain lines; standard error under `--json`. */
import type { PoolMemberView, RunEvent } from "@treadle/contracts";
import { fold, initialState, type RunState } from "@treadle/dashboard/view";
import { openLiveView } from "./live.ts";
import { multiplexFrame } from "./multiplex-frame.ts";
import { printableEvent } from "./printable-event.ts";
import { RunLines } from "./run-lines.ts";
import { isLiveTerminal } from "./start-view.ts";

export type MultiplexView = {
  readonly onEvent: (run: string, event: RunEvent) => void;
  readonly onNotice: (run: string, text: string) => void;
  readonly onPool: (view: () => readonly PoolMemberView[]) => void;
  readonly close: () => void;
};

/** Of those that a frame shows last. */
const keptLines = 8;

export function startMultiplexView(
  runs: readonly string[],
  options: { readonly json: boolean; readonly plain: boolean },
): MultiplexView {
  const stream = options.json ? process.stderr : process.stdout;
  if (!isLiveTerminal(stream, options.plain)) {
    const lines = new RunLines(runs, (line) => stream.write(`${line}\n`));
    return {
      onEvent: (run, event) => lines.event(run, event),
      onNotice: (run, text) => lines.notice(run, text),
      onPool: () => {},
      close: () => {},
    };
  }
  const startedMs = Date.now();
  const states = new Map<string, RunState>(runs.map((run) => [run, initialState]));
  const recent: string[] = [];
  const lines = new RunLines(runs, (line) => {
    recent.push(line);
    if (recent.length > keptLines) recent.shift();
  });
  let look: () => readonly PoolMemberView[] = () => [];
  const live = openLiveView(stream, (frame) => multiplexFrame({ states, pool: look(), recent, startedMs }, frame));
  return {
    onEvent: (run, event) => {
      states.set(run, fold(states.get(run) ?? initialState, printableEvent(event)));
      lines.event(run, event);
      live.update();
    },
    onNotice: (run, text) => {
      lines.notice(run, text);
      live.update();
    },
    onPool: (view) => {
      look = view;
    },
    close: () => live.close(),
  };
}
