/** After which calls a component's state is saved where not every step saves it. Pure. */
export class SavePace {
  readonly #everySteps: number;
  readonly #committed: number;
  readonly #lastStep: number;
  /** of each component, the step after whose calls it was saved last */
  readonly #saved = new Map<string, number>();

  /** `committed`: the step that the run goes on after; `lastStep`: its last one, whose state is always saved. */
  constructor(options: { readonly everySteps: number; readonly committed: number; readonly lastStep: number }) {
    this.#everySteps = options.everySteps;
    this.#committed = options.committed;
    this.#lastStep = options.lastStep;
  }

  /** Asked once for each call that changes the state, in the order of the calls. */
  isDue(component: string, step: number | undefined): boolean {
    if (step === undefined) return true;
    const saved = this.#saved.get(component) ?? this.#committed;
    const periodOf = (each: number) => Math.floor(each / this.#everySteps);
    const isDue = periodOf(step) > periodOf(saved) || step === this.#saved.get(component) || step === this.#lastStep;
    if (isDue) this.#saved.set(component, step);
    return isDue;
  }
}
