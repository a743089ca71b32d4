/**
 * Which file holds which component's state, and as of which step. Pure.
 *
 * A component's calls run in program order, so the newest state that a step up to `n` has saved is the state after
 * step `n`, also when later steps that overlap it have saved theirs already (J1).
 */
type SavedState = { readonly step: number; readonly path: string };

/** Before every step: states that were restored, or saved outside of steps. */
const outside = 0;

export class SavedStates {
  readonly #byComponent = new Map<string, SavedState[]>();

  save(component: string, path: string, step: number | undefined): void {
    const saved = this.#byComponent.get(component) ?? [];
    saved.push({ step: step ?? outside, path });
    this.#byComponent.set(component, saved);
  }

  newest(component: string): string | undefined {
    return this.#byComponent.get(component)?.at(-1)?.path;
  }

  /** The state of each component as of the end of a step, whose predecessors are never asked for again; or the newest. */
  asOf(step?: number): Map<string, string> {
    const found = new Map<string, string>();
    for (const [component, saved] of this.#byComponent) {
      const at = step === undefined ? saved.length - 1 : saved.findLastIndex((state) => state.step <= step);
      if (at < 0) continue;
      found.set(component, (saved[at] as SavedState).path);
      if (step !== undefined) saved.splice(0, at);
    }
    return found;
  }
}
