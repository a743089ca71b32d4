import { setMaxListeners } from "node:events";
import { hearSignals } from "./default-signals.ts";

/** What is left undone then, whoever comes next finds and mends as after a crash. */
const lastMs = 1000;
const interruptedCode = 130;

/** Resolves when the signal is, or has been, given. */
export const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });

/**
 * Ctrl-C once stops after the step under way, twice ends at once; SIGTERM is like Ctrl-C. Whatever hangs, the process and its
 * workers end within `lastMs` of the second signal, and at once with the third. Where this process itself computes without a
 * pause, the first signal after some seconds of that ends it.
 */
export async function interruptible<T>(
  act: (signals: { readonly stop: AbortSignal; readonly kill: AbortSignal }) => Promise<T>,
  onStop: () => void = () => {},
): Promise<T> {
  const stop = new AbortController();
  const kill = new AbortController();
  setMaxListeners(0, stop.signal, kill.signal); // one for each run that is measured at once
  let last: NodeJS.Timeout | undefined;
  const exit = () => process.exit(interruptedCode); // workers of this machine end with this process
  const onSignal = () => {
    if (kill.signal.aborted) exit();
    else if (stop.signal.aborted) {
      last = setTimeout(exit, lastMs);
      kill.abort();
    } else {
      stop.abort();
      onStop();
    }
  };
  using _ = hearSignals(onSignal);
  try {
    return await act({ stop: stop.signal, kill: kill.signal });
  } finally {
    clearTimeout(last);
  }
}
