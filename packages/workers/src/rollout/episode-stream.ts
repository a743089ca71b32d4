import {
  type BegunEpisode,
  type Completion,
  type Prompt,
  type Sampling,
  TreadleError,
  type VersionRuns,
  versionRunsOf,
} from "@treadle/contracts";
import type {
  CompletionPiece,
  CutCompletion,
  GenerateOptions,
  GenerationEngine,
  JoiningCompletion,
  OnNewWeights,
} from "@treadle/engines";
import { sandboxGone } from "../tool/items.ts";
import type { CallOrder } from "./call-order.ts";
import { CompletionJournal, type KeptCompletion, type KeptPart } from "./completion-journal.ts";
import type { ToolAnswer } from "./episode-host.ts";
import { nameAfterLoss } from "./episode-name.ts";
import { answered, begunOf } from "./episode-state.ts";
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
  /**
   * `answers`: where a tool's tokens stand. `goesOn`: it was cut, and may go on in a later step; whoever is told ends what its tool has
   * of it, or keeps that.
   */
  readonly ended: (completion: Completion, answers: readonly Span[], goesOn: CutAtTool | undefined) => void;
};

/** What a later step goes on with, besides tokens. */
export type CutAtTool = {
  /** as its tool knows it */
  readonly trajectory: string;
  /** of the call behind each answer */
  readonly outcomes: readonly ToolOutcome[];
};
type ToolOutcome = Omit<ToolAnswer, "answer">;

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
  /** an episode that has called the tool has ended, and goes on in no later step */
  readonly over?: ((name: string) => void) | undefined;
  /** around each call of the engine */
  readonly timer?: (() => Disposable) | undefined;
  /** single episodes are cut, for which the engine must be able to end single completions */
  readonly cuts?: boolean | undefined;
  /**
   * What is cut may go on in a later step, behind what its tool answers to the call under way; the context length of the engine then,
   * which an answer may have no room in. Undefined: nothing goes on.
   */
  readonly carries?: { readonly contextLength: number } | undefined;
  /** of an engine that heeds it; undefined: what has begun when weights come begins again from its prompt */
  readonly onNewWeights?: OnNewWeights | undefined;
  /** What others had of these episodes goes on, and what they have is kept, up to where a tool is called. */
  readonly journal?: CompletionJournal | undefined;
  /** what a call of the engine took, and made */
  readonly took?: ((seconds: number, completions: readonly Completion[]) => void) | undefined;
};

type Row = {
  readonly episode: StreamedEpisode;
  /** in the order of the call */
  readonly at: number;
  answers: readonly Span[];
  /** of the calls behind them */
  outcomes: readonly ToolOutcome[];
  /** of the last turn that was answered */
  policyVersion: number | undefined;
  /** calls of a tool that have not answered: one, and those of earlier weights */
  numWorking: number;
  hasEnded: boolean;
  /** it was cut while its tool worked, with this, and goes on behind the answer */
  cut: Completion | undefined;
  /** so many tokens were a whole answer, though the engine may not know yet */
  wholeAt: number | undefined;
  /** its tool knows it no more: it begins again */
  isLost: boolean;
  /** of the weights under which it joined */
  readonly joinedAt: number;
  /** ends it early, whichever call of the engine it is in */
  readonly cutting: { cut: () => void };
  /** as the journal knows it */
  readonly id: string;
  /** tokens that the journal has of it */
  numKept: number;
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
  /** since the microtask before */
  readonly #unkept: KeptPart[] = [];
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
    const cutting = { cut: () => {} };
    this.#begin(episode, cutting);
    return () => cutting.cut();
  }

  #begin(episode: StreamedEpisode, cutting: Row["cutting"]): void {
    const joinedAt = this.#options.engine.policyVersion;
    const { journal } = this.#options;
    const id = journal ? CompletionJournal.idOf(episode.prompt.tokens, episode.key, episode.begun?.tokens) : "";
    const kept = journal?.find(id);
    const answers = kept?.finishReason ? kept.answers : (episode.begun?.tool?.answers ?? []);
    // Of what is kept, a turn that no tool has answered is this step's: the order is told when it ends.
    const numTokens = Math.max(episode.begun?.tokens.length ?? 0, answers.at(-1)?.[1] ?? 0);
    const outcomes = kept?.finishReason ? [] : (episode.begun?.tool?.outcomes ?? []);
    const { logprobs } = kept ?? episode.begun ?? {};
    const begun = numTokens > 0 ? { numTokens, answers, outcomes, logprobs, policyVersion: joinedAt } : undefined;
    const at = this.#options.order?.add(episode.prompt, begun) ?? 0;
    const row: Row = {
      ...{
        episode,
        at,
        numWorking: 0,
        hasEnded: false,
        cut: undefined,
        wholeAt: undefined,
        isLost: false,
        joinedAt,
        cutting,
        id,
        numKept: 0,
      },
      answers,
      outcomes,
      policyVersion: (kept ?? episode.begun) && joinedAt,
    };
    this.#numUnfinished++;
    const had = kept ?? episode.begun;
    if (had && (kept?.finishReason || row.answers.length === 0)) this.#keep(row, { ...had, answers: row.answers });
    if (kept?.finishReason) {
      const { temperature } = this.#options.sampling;
      const { tokens, logprobs, finishReason } = kept;
      const completion = { tokens, logprobs, temperature, finishReason, policyVersion: joinedAt };
      queueMicrotask(() => this.#end(row, completion)); // whoever runs it knows it first
      return;
    }
    // The engine asks for the priority of the one that joins before it says its index.
    this.#call.rows.push(row);
    if (this.#call.add?.(joiningOf(row, kept)) === undefined) {
      this.#call = { rows: [row] };
      this.#running = this.#generate(this.#call, kept).catch(this.fail);
    }
    const call = this.#call;
    const index = call.rows.length - 1;
    cutting.cut = () => void call.cut?.(index);
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

  async #generate(call: Call, kept: KeptCompletion | undefined): Promise<void> {
    const { engine, sampling, order, tool, timer, took, cuts, journal, onNewWeights } = this.#options;
    const { rows } = call;
    using _ = timer?.();
    const startMs = performance.now();
    let hasJoined = false;
    const options: GenerateOptions = {
      onNewWeights,
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
        add(joiningOf(rows[0] as Row, kept));
      },
      ...(journal && { onProgress: (pieces) => this.#keepPieces(rows, pieces) }),
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
    const answers = this.#answersIn(row, completion);
    row.wholeAt = undefined;
    order?.turnEnded(row.at, completion);
    const calling = tool?.(name, completion, answers);
    if (!calling) {
      row.wholeAt = completion.tokens.length;
      return undefined;
    }
    row.numWorking++;
    this.#late.add(calling);
    const said = await calling.finally(() => this.#late.delete(calling)).catch(this.#failIfEnded(row));
    row.numWorking--;
    if (row.cut) {
      this.#carry(row, row.cut, said, completion);
      return undefined;
    }
    if (row.hasEnded) {
      if (row.numWorking === 0) this.#options.over?.(name);
      return undefined;
    }
    if (said === sandboxGone) {
      // What began here is this rank's alone: no other goes on with it.
      if (!row.episode.begun) throw new Error(`the sandbox of '${name}' is gone`);
      row.isLost = true;
      return undefined;
    }
    const { answer, ...outcome } = said;
    order?.toolEnded(row.at, { ...outcome, observedTokens: answer.length });
    const { length } = completion.tokens;
    row.answers = [...answers, [length, length + answer.length]];
    row.outcomes = [...outcomesOf(row, answers), outcome];
    row.policyVersion = completion.policyVersion;
    return answer;
  }

  #keepPieces(rows: readonly Row[], pieces: readonly CompletionPiece[]): void {
    const { journal, order } = this.#options;
    for (const { index, from, tokens } of pieces) {
      const { at, hasEnded } = rows[index] as Row;
      if (!hasEnded) order?.generating(at, from + tokens.length);
    }
    if (pieces.some(({ attempt }) => attempt > 0)) journal?.stop();
    // Behind a tool's answer stands what its sandbox knows, which another process does not have.
    const alone = pieces.filter(({ index }) => (rows[index] as Row).answers.length === 0);
    journal?.keep(alone.map(({ index, ...piece }) => ({ ...piece, id: (rows[index] as Row).id })));
    for (const { index, from, tokens } of alone) (rows[index] as Row).numKept = from + tokens.length;
  }

  /** All that it has, of which the journal may have the start. */
  #keep(
    row: Row,
    { tokens, logprobs, ...ended }: Omit<KeptCompletion, "finishReason"> & Partial<KeptCompletion>,
  ): void {
    const from = row.numKept;
    const rest = { from, tokens: tokens.subarray(from), logprobs: logprobs.subarray(from) };
    row.numKept = tokens.length;
    if (!this.#options.journal) return;
    if (this.#unkept.length === 0) queueMicrotask(this.#keepEnded);
    this.#unkept.push({ id: row.id, ...rest, ...ended });
  }

  /** Many end in one message of the engine: they are one write. */
  readonly #keepEnded = (): void => this.#options.journal?.keep(this.#unkept.splice(0));

  #end(row: Row, given: Completion): void {
    const { order, over, carries, sampling } = this.#options;
    const { episode, numWorking } = row;
    // One that was cut before its engine heard that it is complete would go on behind its end.
    const hasStopped = row.wholeAt === given.tokens.length && sampling.stopTokens.includes(given.tokens.at(-1) ?? -1);
    const isWhole = given.finishReason === "abort" && hasStopped;
    const completion: Completion = isWhole ? { ...given, finishReason: "stop" } : given;
    const isCut = completion.finishReason === "abort";
    row.hasEnded = true;
    if (row.isLost) {
      over?.(episode.name);
      order?.cut(row.at);
      if (isCut) episode.ended(nothingOf(completion), [], undefined);
      else this.#begin({ ...episode, begun: undefined, name: nameAfterLoss(episode.name) }, row.cutting);
      this.#count();
      return;
    }
    order?.ended(row.at, completion);
    if (carries && isCut && numWorking > 0) {
      row.cut = completion;
      return;
    }
    // Of an answer that had no room, nothing was appended.
    const answers = this.#answersIn(row, completion).filter(([from]) => from < completion.tokens.length);
    const isOpen = row.answers.length > 0 && numWorking === 0; // what works for it still has its sandbox
    if (isOpen && !(carries && isCut)) over?.(episode.name);
    const goesOn =
      carries && isCut && isOpen ? { trajectory: episode.name, outcomes: outcomesOf(row, answers) } : undefined;
    if (!isCut && row.numKept < completion.tokens.length) this.#keep(row, { ...completion, answers });
    episode.ended(withBegun(row, completion), answers, goesOn);
    this.#count();
  }

  /** Of one that was cut: its tool has answered the turn that had ended with `turn`. */
  #carry(row: Row, cut: Completion, said: ToolAnswer | typeof sandboxGone, turn: Completion): void {
    const { over, carries } = this.#options;
    const { name, prompt, ended } = row.episode;
    row.cut = undefined;
    // A call of an earlier time, with other weights, says nothing to this one.
    const isOfNow = turn.tokens.length === cut.tokens.length && this.#goesOn(turn.policyVersion, cut);
    const state = isOfNow && said !== sandboxGone ? answered(cut, this.#answersIn(row, cut), said.answer) : undefined;
    if (state && prompt.tokens.length + state.tokens.length < (carries?.contextLength ?? 0)) {
      const { answers, ...written } = state;
      const { answer: _, ...outcome } = said as ToolAnswer;
      const outcomes = [...outcomesOf(row, this.#answersIn(row, cut)), outcome];
      ended(withBegun(row, { ...cut, ...written }), answers, { trajectory: name, outcomes });
    } else {
      over?.(name);
      // Without room for the answer it ends as in the engine.
      if (state) ended(withBegun(row, { ...cut, finishReason: "length" }), this.#answersIn(row, cut), undefined);
      else ended(nothingOf(cut), [], undefined);
    }
    this.#count();
  }

  /** Whether a completion has what it had under that version; else it has begun again from its prompt since, with other weights. */
  #goesOn(policyVersion: number | undefined, completion: Completion): boolean {
    return this.#options.onNewWeights !== undefined || policyVersion === completion.policyVersion;
  }

  #answersIn({ answers, policyVersion }: Row, completion: Completion): readonly Span[] {
    return this.#goesOn(policyVersion, completion) ? answers : [];
  }

  #count(): void {
    this.#numUnfinished--;
    this.#wake();
  }

  /** The engine asks no more about what has ended, and so hears of no failure. */
  readonly #failIfEnded = (row: Row) => (error: unknown) => {
    if (row.hasEnded) this.fail(error);
    throw error;
  };
}

/** W1. What is kept begins with what an earlier step had of it; the rest was chosen with the weights that the engine has (CJ1). */
function joiningOf(
  { episode: { prompt, key, begun }, joinedAt }: Row,
  kept: KeptCompletion | undefined,
): JoiningCompletion {
  const joining = { prompt: prompt.tokens, key };
  const had = begun && versionsOf(begun);
  if (kept) {
    const versions = had && versionRunsOf(had, kept.tokens.length, joinedAt);
    return { ...joining, begun: { ...begunOf(kept, []), versions } };
  }
  if (!begun || begun.tokens.length === 0) return joining;
  return { ...joining, begun: { ...begunOf(begun, begun.tool?.answers ?? []), versions: had } };
}

/** It begins again. */
const nothingOf = (completion: Completion): Completion => ({
  ...completion,
  tokens: new Int32Array(),
  logprobs: new Float32Array(),
  versions: undefined,
});

/** W1. Of an engine that tells no versions: what was begun has no part in it when it has begun again with other weights since. */
function withBegun({ episode: { begun }, joinedAt }: Row, completion: Completion): Completion {
  const { policyVersion, tokens } = completion;
  const ofBegun = begun && policyVersion === joinedAt ? versionsOf(begun) : [];
  const versions = versionRunsOf(completion.versions ?? ofBegun, tokens.length, policyVersion);
  const isOfOne = versions.every(([version]) => version === policyVersion);
  return { ...completion, versions: isOfOne ? undefined : versions };
}

const versionsOf = ({ tokens, policyVersion, versions = [] }: BegunEpisode): VersionRuns =>
  versionRunsOf(versions, tokens.length, policyVersion);

/** As many as there are answers: those of earlier weights have none. Of one whose earlier calls nobody kept, they are not known. */
const outcomesOf = ({ outcomes }: Row, { length }: readonly Span[]): readonly ToolOutcome[] => [
  ...outcomes.slice(0, length),
  ...Array.from({ length: Math.max(0, length - outcomes.length) }, () => ({ toolSeconds: 0, hasToolFailed: false })),
];
