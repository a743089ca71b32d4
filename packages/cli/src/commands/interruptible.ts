/** Ctrl-C once stops after the step under way, twice ends at once; SIGTERM is like Ctrl-C. */
export async function interruptible<T>(
  act: (signals: { readonly stop: AbortSignal; readonly kill: AbortSignal }) => Promise<T>,
  onStop: () => void = () => {},
): Promise<T> {
  const stop = new AbortController();
  const kill = new AbortController();
  const onSignal = () => {
    if (stop.signal.aborted) kill.abort();
    else {
      stop.abort();
      onStop();
    }
  };
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  try {
    return await act({ stop: stop.signal, kill: kill.signal });
  } finally {
    process.off("SIGINT", onSignal);
    process.off("SIGTERM", onSignal);
  }
}
