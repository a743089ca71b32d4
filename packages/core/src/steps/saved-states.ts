/**
 * Which folder holds which component's state, and as of which step; and what calls have changed since. Pure.
 *
 * A component's calls run in program order, so the newest state that a step up to `n` has saved is the state after
 * step `n`, also when later steps that overlap it have saved theirs already (J1).
 *
 * SS1 where changes are told, a step is whole only when each component's last change up to it is in a saved state.
 */
type SavedState = { readonly step: number; readonly path: string | undefined; readonly sequence: number };
type Change = { readonly step: number; readonly sequence: number };

/** Before every step: states that were restored, or saved outside of steps. */
const outside = 0;

export class SavedStates {
  readonly #byComponent = new Map<string, SavedState[]>();
  readonly #changes = new Map<string, Change[]>();

  /** Without a path the component had nothing to save. `sequence`: of the call after which it was. */
  save(component: string, path: string | undefined, step: number | undefined, sequence = 0): void {
    const saved = this.#byComponent.get(component) ?? [];
    saved.push({ step: step ?? outside, path: path ?? saved.at(-1)?.path, sequence });
    this.#byComponent.set(component, saved);
  }

  /** A call that changes the state has ended; what it changed is in the worker's memory alone. */
  changed(component: string, step: number | undefined, sequence: number): void {
    const changes = this.#changes.get(component) ?? [];
    changes.push({ step: step ?? outside, sequence });
    this.#changes.set(component, changes);
  }

  newest(component: string): string | undefined {
    return this.#byComponent.get(component)?.at(-1)?.path;
  }

  /** The components with a change that is in no saved state. */
  get unsaved(): string[] {
    return [...this.#changes.keys()].filter((component) => !this.#covers(component, undefined));
  }

  /** Everything up to the end of this step is in saved states (SS1). */
  isWhole(step: number): boolean {
    return [...this.#changes.keys()].every((component) => this.#covers(component, step));
  }

  /** The state of each component as of the end of a step, whose predecessors are never asked for again; or the newest. */
  asOf(step?: number): Map<string, string> {
    const found = new Map<string, string>();
    for (const [component, saved] of this.#byComponent) {
      const at = step === undefined ? saved.length - 1 : saved.findLastIndex((state) => state.step <= step);
      const path = saved[at]?.path;
      if (at < 0 || path === undefined) continue;
      found.set(component, path);
      if (step === undefined) continue;
      saved.splice(0, at);
      const changes = this.#changes.get(component);
      changes?.splice(
        0,
        Math.max(
          0,
          changes.findLastIndex((change) => change.step <= step),
        ),
      );
    }
    return found;
  }

  #covers(component: string, step: number | undefined): boolean {
    const upTo = <Each extends Change>(all: readonly Each[]) =>
      all.findLast((each) => step === undefined || each.step <= step);
    const change = upTo(this.#changes.get(component) ?? []);
    const state = upTo(this.#byComponent.get(component) ?? []);
    return change === undefined || (state !== undefined && state.sequence >= change.sequence);
  }
}
