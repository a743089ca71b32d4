import { currentCall } from "./call-context.ts";
import { WhenAwaited } from "./when-awaited.ts";

/** The promise, of what other workers do, answer or send: a call that awaits it and nothing else is not busy (CM1). */
export function ofOthers<T>(promise: Promise<T>): Promise<T> {
  const wait = currentCall()?.meter?.workerWait();
  if (!wait) return promise;
  const end = () => wait[Symbol.dispose]();
  promise.then(end, end); // before whoever awaits it goes on
  return new WhenAwaited(promise, () => wait.awaited());
}
