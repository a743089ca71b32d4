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

/** What `work` resolves with, or `late` thrown once so many milliseconds have passed. It does not end the work. */
export async function inTime<T>(work: Promise<T>, milliseconds: number, late: Error): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(late), milliseconds);
  });
  try {
    return await Promise.race([work, limit]);
  } finally {
    clearTimeout(timer);
  }
}
