import { type BegunEpisode, type Completion, type Prompt, type Sampling, TreadleError } from "@treadle/contracts";
import type { CutCompletion, GenerateOptions, GenerationEngine, JoiningCompletion } from "@treadle/engines";
import { sandboxGone } from "../tool/items.ts";
import type { CallOrder } from "./call-order.ts";
import type { ToolAnswer } from "./episode-host.ts";
import { FirstFailure } from "./first-failure.ts";

/** From and to, counted after the prompt. */
export type Span = readonly [from: number, to: number];

export type StreamedEpisode = {
  readonly prompt: Prompt;
  /** what its draws depend on, as in `GenerateOptions` */
  readonly key: number;
  /** as its tool knows it */
  readonly name: string;
  /** what an earlier step had of it, which has not ended */
  readonly begun?: BegunEpisode | undefined;
  /** `answers`: where a tool's tokens stand */
  readonly ended: (completion: Completion, answers: readonly Span[]) => void;
};

export type EpisodeStreamOptions = {
  readonly engine: GenerationEngine;
  readonly sampling: Sampling;
  /** undefined: episodes go as they come */
  readonly order?: CallOrder | undefined;
  /** Begins the call of a tool that a turn ends with; undefined where it ends with none, and the episode is complete. */
  readonly tool?:
    | ((
        name: string,
        completion: Completion,
        answers: readonly Span[],
      ) => Promise<ToolAnswer | typeof sandboxGone> | undefined)
    | undefined;
  /** an episode that has called the tool has ended */
  readonly over?: ((name: string) => void) | undefined;
  /** around each call of the engine */
  readonly timer?: (() => Disposable) | undefined;
  /** single episodes are cut, for which the engine must be able to end single completions */
  readonly cuts?: boolean | undefined;
  /** what a call of the engine took, and made */
  readonly took?: ((seconds: number, completions: readonly Completion[]) => void) | undefined;
};

type Row = {
  readonly episode: StreamedEpisode;
  /** in the order of the call */
  readonly at: number;
  answers: readonly Span[];
  /** of the last turn that was answered */
  policyVersion: number | undefined;
  /** calls of a tool that have not answered: one, and those of earlier weights */
  numWorking: number;
  hasEnded: boolean;
  /** of the weights under which it joined */
  readonly joinedAt: number;
};

/** One call of the engine: what joined it, by the engine's index, and what it offers. */
type Call = {
  readonly rows: Row[];
  add?: ((joining: JoiningCompletion) => number | undefined) | undefined;
  cut?: CutCompletion | undefined;
};

/**
 * The episodes of a rank that shares none: one call of its engine, for as long as there are any, which each joins as it comes.
 * So a place that becomes free is taken at the next token, whoever is still long.
 */
export class EpisodeStream {
  readonly #options: EpisodeStreamOptions;
  readonly #failure = new FirstFailure();
  readonly #ended = new AbortController();
  /** the last one */
  #call: Call = { rows: [] };
  /** calls of tools, also by episodes that were cut meanwhile */
  readonly #late = new Set<Promise<unknown>>();
  #running: Promise<void> = Promise.resolve();
  #numUnfinished = 0;
  #wake = (): void => {};

  constructor(options: EpisodeStreamOptions) {
    this.#options = options;
  }

  get numUnfinished(): number {
    return this.#numUnfinished;
  }

  /** Resolves when fewer episodes than that are unfinished. One at a time waits for it. */
  async below(most: number): Promise<void> {
    while (this.#numUnfinished >= most) {
      const ended = new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      await Promise.race([ended, this.failed]);
    }
  }

  /** Rejects with what failed first, and never resolves. */
  get failed(): Promise<never> {
    return this.#failure.happened;
  }

  /** Fails all of it. */
  readonly fail = (error: unknown): void => this.#failure.fail(error);

  /**
   * Returns what ends it early: it has what it chose so far, reason `abort`, and ends once, whoever comes first. Throws
   * `engine.invalid-request` for a prompt that the engine refuses.
   */
  run(episode: StreamedEpisode): () => void {
    const at = this.#options.order?.add(episode.prompt) ?? 0;
    const row: Row = {
      ...{ episode, at, answers: [], policyVersion: undefined, numWorking: 0, hasEnded: false },
      joinedAt: this.#options.engine.policyVersion,
    };
    this.#numUnfinished++;
    // The engine asks for the priority of the one that joins before it says its index.
    this.#call.rows.push(row);
    if (this.#call.add?.(joiningOf(episode)) === undefined) {
      this.#call = { rows: [row] };
      this.#running = this.#generate(this.#call).catch(this.fail);
    }
    const call = this.#call;
    const index = call.rows.length - 1;
    return () => void call.cut?.(index);
  }

  /** Resolves when all have ended, and tools work for none any more. */
  async finish(): Promise<void> {
    await Promise.race([this.failed, this.#running.then(() => Promise.all(this.#late))]);
  }

  /** What has not ended goes on no more. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#ended.abort();
    await this.#running;
  }

  async #generate(call: Call): Promise<void> {
    const { engine, sampling, order, tool, timer, took, cuts } = this.#options;
    const { rows } = call;
    using _ = timer?.();
    const startMs = performance.now();
    let hasJoined = false;
    const options: GenerateOptions = {
      signal: this.#ended.signal,
      order: order && { ...order.options, priority: (index) => order.priority((rows[index] as Row).at) },
      join: (add, cut) => {
        hasJoined = true;
        if (cuts && !cut)
          throw new TreadleError(
            "engine.invalid-request",
            `the engine of kind '${engine.kind}' cannot end one completion and leave the others; call 'join' of GenerateOptions with what does, or set 'tail' to 'wait'`,
          );
        call.add = add;
        call.cut = cut;
        add(joiningOf((rows[0] as Row).episode));
      },
      ...(tool && { extend: (index, completion) => this.#extend(rows[index] as Row, completion) }),
      onCompletion: (index, completion) => this.#end(rows[index] as Row, completion),
    };
    const completions = await engine.generate([], sampling, options);
    if (!hasJoined)
      throw new TreadleError(
        "engine.invalid-request",
        `the engine of kind '${engine.kind}' lets no completion join a call; call the 'join' of GenerateOptions`,
      );
    took?.((performance.now() - startMs) / 1000, completions);
  }

  async #extend(row: Row, completion: Completion): Promise<Int32Array | undefined> {
    const { order, tool } = this.#options;
    const { name } = row.episode;
    const answers = answersIn(row, completion);
    order?.turnEnded(row.at, completion);
    const calling = tool?.(name, completion, answers);
    if (!calling) return undefined;
    row.numWorking++;
    this.#late.add(calling);
    const said = await calling.finally(() => this.#late.delete(calling));
    row.numWorking--;
    if (row.hasEnded) {
      if (row.numWorking === 0) this.#options.over?.(name);
      return undefined;
    }
    // It is this rank's alone: no other goes on with it.
    if (said === sandboxGone) throw new Error(`the sandbox of '${name}' is gone`);
    const { answer, ...outcome } = said;
    order?.toolEnded(row.at, { ...outcome, observedTokens: answer.length });
    const { length } = completion.tokens;
    row.answers = [...answers, [length, length + answer.length]];
    row.policyVersion = completion.policyVersion;
    return answer;
  }

  #end(row: Row, completion: Completion): void {
    const { order, over } = this.#options;
    row.hasEnded = true;
    // What works for it still has its sandbox.
    if (row.answers.length > 0 && row.numWorking === 0) over?.(row.episode.name);
    order?.ended(row.at, completion);
    // Of an answer that had no room, nothing was appended.
    const answers = answersIn(row, completion).filter(([from]) => from < completion.tokens.length);
    row.episode.ended(withBegun(row, completion), answers);
    this.#numUnfinished--;
    this.#wake();
  }
}

const joiningOf = ({ prompt, key, begun }: StreamedEpisode): JoiningCompletion => ({
  ...{ prompt: prompt.tokens, key },
  ...(begun && begun.tokens.length > 0 && { begun: { ...begun, numAppended: 0 } }),
});

/** What was begun has no part in it when the completion has begun again with other weights since. */
const withBegun = ({ episode: { begun }, joinedAt }: Row, completion: Completion): Completion =>
  begun && completion.policyVersion === joinedAt
    ? { ...completion, begun: { numTokens: begun.tokens.length, policyVersion: begun.policyVersion } }
    : completion;

/** None, when the completion has begun again with other weights since. */
const answersIn = ({ answers, policyVersion }: Row, completion: Completion): readonly Span[] =>
  policyVersion === completion.policyVersion ? answers : [];
