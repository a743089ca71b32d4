/**
 * Who holds up a wait that has lasted too long. Pure: whoever asks the workers drives it.
 *
 * - HU1 the search follows who waits for whom, beginning with the worker that was awaited. The culprit is the first that waits for
 *   nobody, says nothing, or waits only for workers that were asked before.
 * - HU2 nobody is asked twice.
 */

/** What a worker says when it is asked for whom it waits. */
export type Said =
  | { readonly type: "waits"; readonly waitsFor: readonly string[] }
  | { readonly type: "silent" }
  /** it is starting and waits for nobody, or has no place; the supervisor gives that deadlines of its own */
  | { readonly type: "absent" };

export type HoldUp =
  | { readonly worker: string; readonly why: "silent" | "elsewhere" | "circle" }
  | { readonly worker: string; readonly why: "absent" };

/** Yields each worker that is to be asked, takes its answer, and returns who holds `awaiting` up. */
export function* findHoldUp(awaiting: string, awaited: string): Generator<string, HoldUp, Said> {
  const asked = new Set([awaiting]);
  for (let worker = awaited; ; ) {
    asked.add(worker);
    const said = yield worker;
    if (said.type !== "waits") return { worker, why: said.type };
    if (said.waitsFor.length === 0) return { worker, why: "elsewhere" };
    const next = said.waitsFor.find((each) => !asked.has(each)); // HU2
    if (next === undefined) return { worker, why: "circle" };
    worker = next;
  }
}
