/**
 * Aborts after so many milliseconds, or when one of the signals does. `AbortSignal.timeout` within `AbortSignal.any` is forgotten
 * when Node 20 collects garbage, and what waits for it waits for ever: here the timer holds it. It keeps no process.
 */
export function timeLimit(milliseconds: number, ...signals: readonly (AbortSignal | undefined)[]): AbortSignal {
  const limit = new AbortController();
  const late = (): void => limit.abort(new DOMException("The operation was aborted due to timeout", "TimeoutError"));
  setTimeout(late, milliseconds).unref();
  return AbortSignal.any([limit.signal, ...signals.filter((signal) => signal !== undefined)]);
}
