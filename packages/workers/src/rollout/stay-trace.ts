import type { Completion } from "@treadle/contracts";
import type { Tracer } from "@treadle/runtime";
import { stemOf } from "./episode-name.ts";
import type { EpisodeState, Move } from "./rank-messages.ts";

export type StayTraceOptions = {
  /** where nothing is traced: undefined */
  readonly tracer?: Pick<Tracer, "now" | "complete" | "instant"> | undefined;
  readonly component: string;
};

type Stay = {
  readonly name: string;
  readonly owner: number;
  readonly attempt: number;
  readonly state: Pick<EpisodeState, "tokens"> | undefined;
};

/** One episode at one rank, from when it is sent there until it ends or leaves, as the trace has it. */
export class StayTrace {
  readonly #options: StayTraceOptions;
  readonly #stay: Stay;
  readonly #startMs: number;
  #numCalls = 0;
  #toolSeconds = 0;

  constructor(options: StayTraceOptions, stay: Stay) {
    this.#options = options;
    this.#stay = stay;
    this.#startMs = options.tracer?.now() ?? 0;
  }

  answered(toolSeconds: number): void {
    this.#numCalls++;
    this.#toolSeconds += toolSeconds;
  }

  /** An arrow leads to where it goes on. */
  moved({ tokens }: Pick<EpisodeState, "tokens">, { to, predictedTokens, loadHere, loadThere }: Move): void {
    const { tracer, component } = this.#options;
    const { name, attempt } = this.#stay;
    const why = `${Math.round(predictedTokens)} tokens predicted to come; ${loadHere} episodes here, ${loadThere} there`;
    tracer?.instant(`${shown(name)} to ${component}/${to}`, "episode", { attributes: { why } });
    this.#complete(tokens.length, { end: `moves to ${component}/${to}`, why }, `${name} ${attempt + 1}`);
  }

  ended({ tokens }: Pick<Completion, "tokens">, how: string): void {
    this.#complete(tokens.length, { end: how });
  }

  #complete(numTokens: number, about: Readonly<Record<string, string>>, flowOut?: string): void {
    const { tracer, component } = this.#options;
    if (!tracer) return;
    const { name, attempt, owner, state } = this.#stay;
    tracer.complete(shown(name), "episode", this.#startMs, tracer.now(), {
      flowIn: attempt > 1 ? `${name} ${attempt}` : undefined,
      flowOut,
      attributes: {
        owner: `${component}/${owner}`,
        tokensBefore: state?.tokens.length ?? 0,
        tokens: numTokens - (state?.tokens.length ?? 0),
        calls: this.#numCalls,
        toolMs: Math.round(1000 * this.#toolSeconds),
        ...about,
      },
    });
  }
}

/** Its prompt, and which sample of it. */
const shown = (name: string): string => stemOf(name).replace(/^[^:]*:/, "");
