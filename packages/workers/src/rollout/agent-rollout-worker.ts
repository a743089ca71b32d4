import {
  type Completion,
  type Episode,
  type EpisodeGroup,
  type Prompt,
  type Sampling,
  TreadleError,
} from "@treadle/contracts";
import { scoreTurns } from "@treadle/learning";
import type { Sink, Source, WorkerContext, WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import { tokenizerName } from "../tokenizer/tokenizer-choice.ts";
import { sandboxGone, type ToolCall, type ToolReport } from "../tool/items.ts";
import { ToolSession } from "../tool/tool-session.ts";
import { type ToolCaller, ToolSessions } from "../tool/tool-sessions.ts";
import type { ToolWorker } from "../tool/tool-worker.ts";
import type { ToolAnswer } from "./episode-host.ts";
import type { Span } from "./episode-stream.ts";
import type { EvaluationCount } from "./evaluation.ts";
import {
  type EpisodeTool,
  GenerationWorker,
  RolloutConfig,
  type RolloutMetrics,
  sampleKey,
} from "./generation-worker.ts";
import { toEpisode } from "./to-episode.ts";

/** One character of an alphabet, or one token of a model's tokenizer, such as `</tool>`. */
const oneToken = z.string().min(1);

/** How a call looks in an episode: `<12*34>408|`, of which the policy writes all up to `>`, and the tool the rest. */
export const CallSyntax = z.strictObject({
  open: oneToken,
  close: oneToken,
  /** ends what the tool answered */
  end: oneToken,
  /** stands for the answer of a call that failed */
  failure: z.string().min(1),
  /** a call beyond ends the episode */
  maxCalls: z.int().positive(),
  /** answers are cut at this length */
  maxAnswerTokens: z.int().positive(),
});
export type CallSyntax = z.infer<typeof CallSyntax>;

export const AgentRolloutConfig = RolloutConfig.extend({ call: CallSyntax });
export type AgentRolloutConfig = z.infer<typeof AgentRolloutConfig>;

/** What one rank's episodes did with their tool: calls an episode, failures a call, and the tool's own figures. */
export type AgentMetrics = ToolReport &
  RolloutMetrics & {
    /** share of episodes that called at least once */
    readonly toolUse: number;
  };

/**
 * Generates episodes of several turns: the policy writes a call, a tool answers within the episode, the policy goes on.
 * While its tool works, an episode may leave its place in the engine's batch to another; the others go on.
 */
export class AgentRolloutWorker extends GenerationWorker<AgentRolloutConfig> {
  static override readonly module: string = import.meta.url;
  #closeToken!: number;

  constructor(context: WorkerContext<AgentRolloutConfig>) {
    super(context);
    if (this.tokenizer !== undefined) this.#findCalls();
  }

  protected override async openTokenizer(): Promise<void> {
    await super.openTokenizer();
    this.#findCalls();
  }

  #findCalls(): void {
    const { open, close, end, failure } = this.config.call;
    for (const own of [open, close, end]) {
      if (this.#tokensOf(own)?.length === 1) continue;
      throw new TreadleError(
        "config.invalid",
        `call: '${own}' is not one token of ${tokenizerName(this.config)}: allowed is one, so that calls are found; add it there, or choose another`,
      );
    }
    if (!this.#tokensOf(failure))
      throw new TreadleError(
        "config.invalid",
        `call.failure: '${failure}' has no tokens in ${tokenizerName(this.config)}; add them`,
      );
    this.#closeToken = this.tokenizer.encode(close)[0]!;
  }

  /** One group of `groupSize` scored episodes for each prompt; with `tail` `batch` or `carry`, prompts that have none go to `late`. */
  async generate(
    prompts: Source<Prompt>,
    groups: Sink<EpisodeGroup>,
    tool: WorkerGroup<ToolWorker>,
    late?: Sink<Prompt>,
  ): Promise<AgentMetrics> {
    await using _ = await this.lock();
    // What goes on at another rank, or in another step, calls the rank of the tool that has its sandbox.
    const isMoving = this.isSharing || this.config.tail === "carry";
    const session = await (isMoving ? ToolSessions.open(tool, this.#name) : this.#session(tool));
    let numEpisodes = 0;
    let numCallers = 0;
    const metrics = await this.play(prompts, groups, {
      judge: (prompt, completion, answers) => this.#judged(prompt, completion, answers),
      made: ({ episodes }) => {
        numEpisodes += episodes.length;
        for (const { mask, promptLength } of episodes) if (mask.indexOf(0, promptLength) >= 0) numCallers++;
      },
      tool: this.#toolOf(session),
      late,
    });
    const { toolCalls, toolFailures, ...times } = await session.close();
    return {
      toolUse: numCallers / Math.max(1, numEpisodes),
      toolCalls: toolCalls / Math.max(1, numEpisodes),
      toolFailures: toolFailures / Math.max(1, toolCalls),
      ...times,
      ...metrics,
    };
  }

  /** Greedy episodes of this rank's share of the prompts, judged by the reward. */
  async evaluate(prompts: readonly Prompt[], tool: WorkerGroup<ToolWorker>): Promise<EvaluationCount> {
    await using _ = await this.devices.lock();
    const session = await this.#session(tool);
    const mine = prompts.filter((_, index) => index % this.worldSize === this.rank);
    const made: Promise<Episode>[] = [];
    await using stream = this.streamOf(0, this.#toolOf(session));
    for (const prompt of mine)
      stream.run({
        prompt,
        key: sampleKey(prompt, 0),
        name: `${prompt.id}#${made.length}`,
        ended: (completion, answers) => made.push(this.#judged(prompt, completion, answers)),
      });
    await stream.finish();
    const episodes = await Promise.all(made);
    await session.close();
    return { correct: episodes.filter(({ reward }) => reward >= 1).length, total: mine.length };
  }

  #session(tool: WorkerGroup<ToolWorker>): Promise<ToolSession> {
    return ToolSession.open(tool.onRanks(this.rank % tool.size), this.#name);
  }

  get #name(): string {
    return `${this.component}/${this.rank}`;
  }

  #toolOf(session: ToolCaller): EpisodeTool {
    return {
      call: (name, completion, answers) => this.#toolCall(session, name, completion, answers),
      over: (name) => session.end(name),
      keep: (name) => session.keep(name),
      isStateful: session.isStateful,
    };
  }

  /** The call of the tool that a turn ends with, begun; undefined where the episode is complete. */
  #toolCall(
    session: ToolCaller,
    trajectory: string,
    { tokens }: Completion,
    answers: readonly Span[],
  ): Promise<ToolAnswer | typeof sandboxGone> | undefined {
    const { call } = this.config;
    const text = this.#calledText(tokens, answers.at(-1)?.[1] ?? 0);
    if (text === undefined || answers.length === call.maxCalls) return undefined;
    return this.#ask(session, { trajectory, text, numAnswered: answers.length });
  }

  async #ask(session: ToolCaller, asked: ToolCall): Promise<ToolAnswer | typeof sandboxGone> {
    const askedMs = performance.now();
    const { status, exitCode, output } = await session.call(asked);
    if (status === sandboxGone) return sandboxGone;
    const toolSeconds = (performance.now() - askedMs) / 1000;
    const answer = this.#answerTokens(exitCode === 0 ? output : this.config.call.failure);
    return { answer, toolSeconds, hasToolFailed: exitCode !== 0 };
  }

  protected sampling(temperature: number): Sampling {
    const stopTokens = [this.tokenizer.stopToken, this.#closeToken];
    return { maxTokens: this.config.maxTokens, temperature, stopTokens, seed: this.seed };
  }

  async #judged(prompt: Prompt, completion: Completion, answers: readonly Span[]): Promise<Episode> {
    const { reward, turns } = await this.#score(prompt, completion, answers);
    return toEpisode(this.engine.kind, prompt, completion, reward, answers, turns);
  }

  /** The text of the call that ends here, in what the policy wrote since `from`; undefined when it is none. */
  #calledText(tokens: Int32Array, from: number): string | undefined {
    if (tokens.at(-1) !== this.#closeToken) return undefined;
    const { open } = this.config.call;
    const written = this.tokenizer.transcribe(tokens.subarray(from, -1));
    const at = written.lastIndexOf(open);
    return at < 0 ? undefined : written.slice(at + open.length);
  }

  /** What the policy reads of an answer: as much of it as fits, of what has tokens, without what marks calls. */
  #answerTokens(output: string): Int32Array {
    const { alphabet, call } = this.config;
    const marks = [call.open, call.close, call.end];
    const plain = marks.reduce((text, mark) => text.replaceAll(mark, ""), output);
    const readable = alphabet === undefined ? plain : [...plain].filter((one) => alphabet.includes(one)).join("");
    const answer = this.tokenizer.encode(readable).subarray(0, call.maxAnswerTokens - 1);
    return Int32Array.of(...answer, ...this.tokenizer.encode(call.end));
  }

  /** Undefined for what cannot be written. */
  #tokensOf(text: string): Int32Array | undefined {
    try {
      return this.tokenizer.encode(text);
    } catch {
      return undefined;
    }
  }

  /** Judges what the policy wrote after its last call, and may judge each turn. Without a stop the answer is not finished, whatever it says. */
  async #score(
    prompt: Prompt,
    { tokens }: Completion,
    answers: readonly Span[],
  ): Promise<Awaited<ReturnType<typeof scoreTurns>>> {
    const answer = tokens.subarray(answers.at(-1)?.[1] ?? 0);
    // A stop that ends a tool's answer is not the policy's: what was cut there has no last turn.
    if (answer.at(-1) !== this.tokenizer.stopToken) return { reward: 0 };
    const { tokenizer } = this;
    const turns = [...answers, undefined].map((span, turn) => ({
      text: tokenizer.decode(tokens.subarray(answers[turn - 1]?.[1] ?? 0, span?.[0])),
      // All but `call.end`, one token.
      ...(span && { answer: tokenizer.transcribe(tokens.subarray(span[0], span[1] - 1)) }),
    }));
    return scoreTurns(this.reward, prompt, { tokens: answer, text: tokenizer.decode(answer), turns });
  }
}
