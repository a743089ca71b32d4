import {
  type Completion,
  type Episode,
  type EpisodeGroup,
  type Prompt,
  type Sampling,
  TreadleError,
} from "@treadle/contracts";
import { scoreCompletion } from "@treadle/learning";
import type { Sink, Source, WorkerContext, WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import { sandboxGone, type ToolCall, type ToolReport } from "../tool/items.ts";
import { ToolSession } from "../tool/tool-session.ts";
import { type ToolCaller, ToolSessions } from "../tool/tool-sessions.ts";
import type { ToolWorker } from "../tool/tool-worker.ts";
import type { CallOrder } from "./call-order.ts";
import type { ToolAnswer } from "./episode-host.ts";
import {
  type EvaluationCount,
  GenerationWorker,
  RolloutConfig,
  type Span,
  sampleKey,
  toEpisode,
} from "./generation-worker.ts";
import { GroupDelivery } from "./group-delivery.ts";
import type { PredictionMetrics, SharingMetrics } from "./order-config.ts";

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
  PredictionMetrics &
  SharingMetrics & {
    /** share of episodes that called at least once */
    readonly toolUse: number;
  };

/** One episode to play. */
type Row = { readonly prompt: Prompt; readonly sample: number };

/** One episode under way: where, after the prompt, the tool's tokens stand. */
type Draft = { readonly trajectory: string; answers: Span[]; policyVersion: number | undefined };

/**
 * Generates episodes of several turns: the policy writes a call, a tool answers within the episode, the policy goes on.
 * While its tool works, an episode may leave its place in the engine's batch to another; the others go on.
 */
export class AgentRolloutWorker extends GenerationWorker<AgentRolloutConfig> {
  static override readonly module: string = import.meta.url;
  readonly #closeToken: number;

  constructor(context: WorkerContext<AgentRolloutConfig>) {
    super(context);
    const { open, close, end, failure } = this.config.call;
    for (const own of [open, close, end]) {
      if (this.#tokensOf(own)?.length === 1) continue;
      throw new TreadleError(
        "config.invalid",
        `call: '${own}' is not one token of ${this.#tokenizerName}: allowed is one, so that calls are found; add it there, or choose another`,
      );
    }
    if (!this.#tokensOf(failure))
      throw new TreadleError(
        "config.invalid",
        `call.failure: '${failure}' has no tokens in ${this.#tokenizerName}; add them`,
      );
    this.#closeToken = this.tokenizer.encode(close)[0]!;
  }

  /** One group of `groupSize` scored episodes for each prompt. */
  async generate(
    prompts: Source<Prompt>,
    groups: Sink<EpisodeGroup>,
    tool: WorkerGroup<ToolWorker>,
  ): Promise<AgentMetrics> {
    await using _ = await this.lock();
    const { groupSize, temperature } = this.config;
    const session = await (this.isSharing ? ToolSessions.open(tool, this.#name) : this.#session(tool));
    await using shared = this.share({
      tool: (hosted, completion, answers) => this.#toolCall(session, hosted.name, completion, answers),
      over: ({ name }, answers, hasLeft) => {
        if (answers.length > 0 && !hasLeft) session.end(name);
      },
      isToolStateful: session.isStateful,
    });
    let numEpisodes = 0;
    let numCallers = 0;
    for await (const batch of prompts.itemBatches()) {
      const asked = batch.map(({ value }) => value);
      this.warnOfCut(asked);
      const rows = asked.flatMap((prompt) => Array.from({ length: groupSize }, (_, sample) => ({ prompt, sample })));
      const delivery = new GroupDelivery(batch, groupSize, groups);
      const each = rows.map(({ prompt }) => prompt);
      if (shared) {
        using _ = this.timer("decode");
        const samples = rows.map(({ sample }) => sample);
        await shared.play(each, samples, (index, completion, answers) =>
          delivery.add(index, this.#judged((rows[index] as Row).prompt, completion, answers)),
        );
      } else {
        const order = this.orderOf(each);
        await this.#play(rows, temperature, session, (index, episode) => delivery.add(index, episode), order);
      }
      const made = await delivery.finish();
      const episodes = made.flatMap((group) => group.episodes);
      numEpisodes += episodes.length;
      for (const { mask, promptLength } of episodes) if (mask.indexOf(0, promptLength) >= 0) numCallers++;
      await this.keepCompletions(asked, made);
    }
    await shared?.finish();
    const lengths = await this.learnLengths();
    const { toolCalls, toolFailures, ...times } = await session.close();
    return {
      toolUse: numCallers / Math.max(1, numEpisodes),
      toolCalls: toolCalls / Math.max(1, numEpisodes),
      toolFailures: toolFailures / Math.max(1, toolCalls),
      ...times,
      ...shared?.metrics,
      ...lengths,
    };
  }

  /** Greedy episodes of this rank's share of the prompts, judged by the reward. */
  async evaluate(prompts: readonly Prompt[], tool: WorkerGroup<ToolWorker>): Promise<EvaluationCount> {
    await using _ = await this.devices.lock();
    const session = await this.#session(tool);
    const mine = prompts.filter((_, index) => index % this.worldSize === this.rank);
    const rows = mine.map((prompt) => ({ prompt, sample: 0 }));
    const made: Promise<Episode>[] = [];
    await this.#play(rows, 0, session, (_, episode) => made.push(episode));
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

  /** Each episode is made as soon as it has ended. */
  async #play(
    rows: readonly Row[],
    temperature: number,
    session: ToolCaller,
    made: (index: number, episode: Promise<Episode>) => void,
    order?: CallOrder,
  ): Promise<void> {
    const drafts = rows.map(
      ({ prompt }, index): Draft => ({
        trajectory: `${prompt.id}#${index}`,
        answers: [],
        policyVersion: undefined,
      }),
    );
    using _ = this.timer("decode");
    const startMs = performance.now();
    const completions = await this.engine.generate(
      rows.map(({ prompt }) => prompt.tokens),
      this.sampling(temperature),
      {
        keys: rows.map(({ prompt, sample }) => sampleKey(prompt, sample)),
        order: order?.options,
        extend: async (index, completion) => {
          const draft = drafts[index] as Draft;
          const answers = answersIn(draft, completion);
          const { tokens } = completion;
          order?.turnEnded(index, completion);
          const calling = this.#toolCall(session, draft.trajectory, completion, answers);
          if (!calling) return undefined;
          const said = await calling;
          // Its sandbox is this rank's alone.
          if (said === sandboxGone) throw new Error(`the sandbox of '${draft.trajectory}' is gone`);
          const { answer, ...outcome } = said;
          order?.toolEnded(index, { ...outcome, observedTokens: answer.length });
          draft.answers = [...answers, [tokens.length, tokens.length + answer.length]];
          draft.policyVersion = completion.policyVersion;
          return answer;
        },
        onCompletion: (index, completion) => {
          const draft = drafts[index] as Draft;
          if (draft.answers.length > 0) session.end(draft.trajectory);
          order?.ended(index, completion);
          made(index, this.#episode((rows[index] as Row).prompt, draft, completion));
        },
      },
    );
    if (order) this.took((performance.now() - startMs) / 1000, completions);
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
    return this.#ask(session, { trajectory, text, goesOn: answers.length > 0 });
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

  #episode(prompt: Prompt, draft: Draft, completion: Completion): Promise<Episode> {
    // Of an answer that had no room, nothing was appended.
    const answers = answersIn(draft, completion).filter(([from]) => from < completion.tokens.length);
    return this.#judged(prompt, completion, answers);
  }

  async #judged(prompt: Prompt, completion: Completion, answers: readonly Span[]): Promise<Episode> {
    const reward = await this.#score(prompt, completion, answers.at(-1)?.[1] ?? 0);
    return toEpisode(this.engine.kind, prompt, completion, reward, answers);
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

  get #tokenizerName(): string {
    const { alphabet, tokenizer } = this.config;
    return tokenizer ? `the tokenizer of '${tokenizer.folder}'` : `the alphabet '${alphabet}'`;
  }

  /** Undefined for what cannot be written. */
  #tokensOf(text: string): Int32Array | undefined {
    try {
      return this.tokenizer.encode(text);
    } catch {
      return undefined;
    }
  }

  /** Judges what the policy wrote after its last call. Without a stop the answer is not finished, whatever it says. */
  async #score(prompt: Prompt, { tokens }: Completion, from: number): Promise<number> {
    if (tokens.at(-1) !== this.tokenizer.stopToken) return 0;
    const answer = tokens.subarray(from);
    return scoreCompletion(this.reward, prompt, { tokens: answer, text: this.tokenizer.decode(answer) });
  }
}

/** None, when the completion has begun again with other weights since. */
const answersIn = ({ answers, policyVersion }: Draft, completion: Completion): readonly Span[] =>
  policyVersion === completion.policyVersion ? answers : [];
