import { type Completion, type Prompt, type Sampling, TreadleError } from "@treadle/contracts";
import type { GenerateOptions, GenerationEngine, JoiningCompletion } from "@treadle/engines";
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
};

/**
 * The episodes of a rank that shares none: one call of its engine, for as long as there are any, which each joins as it comes.
 * So a place that becomes free is taken at the next token, whoever is still long.
 */
export class EpisodeStream {
  readonly #options: EpisodeStreamOptions;
  readonly #failure = new FirstFailure();
  readonly #ended = new AbortController();
  /** of the call under way */
  #rows: Row[] = [];
  #add: ((joining: JoiningCompletion) => number | undefined) | undefined;
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

  /** Throws `engine.invalid-request` for a prompt that the engine refuses. */
  run(episode: StreamedEpisode): void {
    const at = this.#options.order?.add(episode.prompt) ?? 0;
    const row: Row = { episode, at, answers: [], policyVersion: undefined };
    this.#numUnfinished++;
    // The engine asks for the priority of the one that joins before it says its index.
    this.#rows.push(row);
    if (this.#add?.(joiningOf(episode)) !== undefined) return;
    this.#rows = [row];
    this.#running = this.#generate(this.#rows).catch(this.fail);
  }

  /** Resolves when all have ended. */
  async finish(): Promise<void> {
    await Promise.race([this.#running, this.failed]);
  }

  /** What has not ended goes on no more. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#ended.abort();
    await this.#running;
  }

  async #generate(rows: readonly Row[]): Promise<void> {
    const { engine, sampling, order, tool, timer, took } = this.#options;
    using _ = timer?.();
    const startMs = performance.now();
    let hasJoined = false;
    const options: GenerateOptions = {
      signal: this.#ended.signal,
      order: order && { ...order.options, priority: (index) => order.priority((rows[index] as Row).at) },
      join: (add) => {
        hasJoined = true;
        this.#add = add;
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
    const said = await calling;
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
    if (row.answers.length > 0) over?.(row.episode.name);
    order?.ended(row.at, completion);
    // Of an answer that had no room, nothing was appended.
    const answers = answersIn(row, completion).filter(([from]) => from < completion.tokens.length);
    row.episode.ended(completion, answers);
    this.#numUnfinished--;
    this.#wake();
  }
}

const joiningOf = ({ prompt, key }: StreamedEpisode): JoiningCompletion => ({ prompt: prompt.tokens, key });

/** None, when the completion has begun again with other weights since. */
const answersIn = ({ answers, policyVersion }: Row, completion: Completion): readonly Span[] =>
  policyVersion === completion.policyVersion ? answers : [];
