/**
 * What a run holds that keeps all of its devices for whole steps: one lease of all of them, out of which its lock has what it
 * asks for. When others wait, it goes back once a step is committed and what is under way has ended.
 */
import type { DeviceLease } from "@treadle/contracts";
import type { SimulatedRun } from "../simulated-run.ts";

export class WholeLease {
  readonly #run: () => SimulatedRun | undefined;
  readonly #request: () => void;
  readonly #release: (token: number) => void;
  /** of the pool, while it is held */
  #token: number | undefined;
  #isAsked = false;
  #isWanted = false;
  #isLeaving = false;
  /** what the lock has, by tokens of its own, and what it waits for */
  readonly #given = new Set<number>();
  #asked: (readonly string[])[] = [];
  #lastToken = 0;

  constructor(options: {
    readonly run: () => SimulatedRun | undefined;
    readonly request: () => void;
    readonly release: (token: number) => void;
  }) {
    this.#run = options.run;
    this.#request = options.request;
    this.#release = options.release;
  }

  asked(devices: readonly string[]): void {
    this.#asked.push(devices);
    this.#goOn();
  }

  released(token: number): void {
    this.#given.delete(token);
    this.#goOn();
  }

  granted({ token }: DeviceLease): void {
    this.#token = token;
    this.#isAsked = false;
    this.#isWanted = false;
    this.#goOn();
  }

  wanted(token: number): void {
    this.#isWanted ||= token === this.#token;
  }

  committed(): void {
    if (!this.#isWanted) return;
    this.#isWanted = false;
    this.#isLeaving = true;
    for (const token of [...this.#given]) this.#run()?.lease({ type: "lease-wanted", token, drains: true });
    this.#goOn();
  }

  #goOn(): void {
    if (this.#isLeaving && this.#given.size === 0) {
      this.#release(this.#token as number);
      this.#token = undefined;
      this.#isWanted = false;
      this.#isLeaving = false;
    }
    if (this.#isLeaving || this.#asked.length === 0) return;
    if (this.#token === undefined) {
      if (!this.#isAsked) this.#request();
      this.#isAsked = true;
      return;
    }
    const asked = this.#asked;
    this.#asked = [];
    for (const devices of asked) {
      const token = ++this.#lastToken;
      this.#given.add(token);
      this.#run()?.lease({ type: "leased", lease: { token, devices: [...devices] } });
    }
  }
}
