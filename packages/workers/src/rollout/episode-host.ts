import type { Completion, Sampling } from "@treadle/contracts";
import type { GenerateOptions, GenerationEngine, GenerationOrder, JoiningCompletion } from "@treadle/engines";
import type { CompanyMark, MeasuredInterference } from "@treadle/trajectories";
import { sandboxGone } from "../tool/items.ts";
import { answered, begunOf } from "./episode-state.ts";
import { FirstFailure } from "./first-failure.ts";
import type { EpisodeState, Move } from "./rank-messages.ts";
import { StayTrace, type StayTraceOptions } from "./stay-trace.ts";

/** An episode that this rank runs, its own or another's, in one attempt. */
export type HostedEpisode = {
  readonly owner: number;
  readonly episode: number;
  readonly attempt: number;
  readonly name: string;
  readonly prompt: Int32Array;
  readonly key: number;
  /** until its owner says another one */
  readonly priority: () => number;
  readonly state: EpisodeState | undefined;
};

/** What a tool said to a turn. */
export type ToolAnswer = { readonly answer: Int32Array; readonly toolSeconds: number; readonly hasToolFailed: boolean };

export type HostEvents = {
  readonly turnEnded: (hosted: HostedEpisode, state: EpisodeState) => void;
  readonly answered: (
    hosted: HostedEpisode,
    state: EpisodeState,
    outcome: Omit<ToolAnswer, "answer">,
    hasLeft: boolean,
  ) => void;
  readonly ended: (hosted: HostedEpisode, state: EpisodeState, completion: Completion) => void;
  /** It goes on here no more, nor from where it was. */
  readonly lost: (hosted: HostedEpisode) => void;
  /** An orphan has ended, which whoever has its prompt may have. */
  readonly orphanEnded: (hosted: HostedEpisode, state: EpisodeState, completion: Completion) => void;
  /** One that nobody else is told of has begun or ended to be computed. */
  readonly changed: () => void;
};

export type EpisodeHostOptions = StayTraceOptions & {
  readonly engine: GenerationEngine;
  readonly sampling: Sampling;
  /** of the engine */
  readonly contextLength: number;
  readonly order: Omit<GenerationOrder, "priority">;
  /**
   * Who goes first that came first to this rank, or that began last to wait here; default: the highest priority. Owners number
   * their episodes each for itself.
   */
  readonly arrivals: "first" | "latest" | undefined;
  /**
   * Begins the call of a tool that a turn ends with; undefined where it ends with none, and the episode is complete. What has lost
   * its sandbox begins again.
   */
  readonly tool:
    | ((
        hosted: HostedEpisode,
        completion: Completion,
        answers: EpisodeState["answers"],
      ) => Promise<ToolAnswer | typeof sandboxGone> | undefined)
    | undefined;
  /** the episode goes on here no more: what its tool holds for it is another's, or nobody's */
  readonly over: (hosted: HostedEpisode, answers: EpisodeState["answers"], hasLeft: boolean) => void;
  readonly events: HostEvents;
  /** is told of every turn here */
  readonly measured: MeasuredInterference;
  /** in milliseconds */
  readonly now: () => number;
};

/** When an episode goes on elsewhere, and where. */
export type Departure = {
  readonly episode: number;
  readonly attempt: number;
  readonly numAnswers: number;
  readonly move: Move;
};

/** Which goes first of those that wait. */
export type Priority = { readonly episode: number; readonly attempt: number; readonly priority: number };

const nobody = -1;

type Row = {
  readonly hosted: HostedEpisode;
  readonly stay: StayTrace;
  /** asked whenever it begins to wait for a place of the engine */
  priority: () => number;
  arrival: number | undefined;
  answers: EpisodeState["answers"];
  at: "decode" | "tool" | "over";
  /** when the turn under way began, and behind how many tokens */
  began: { readonly mark: CompanyMark; readonly numTokens: number };
  move: Move | undefined;
  /** nobody waits for it any more */
  isForgotten: boolean;
  /** its owner is gone: it goes on to its end, and its number may be another's */
  isOrphan: boolean;
};

/** The episodes of one rank, whoever owns them: one call of its engine, which others join, for as long as there are any. */
export class EpisodeHost {
  readonly #options: EpisodeHostOptions;
  /** of the call under way, in its order */
  #rows: Row[] = [];
  /** those that are not over */
  readonly #open = new Set<Row>();
  /** of these, queued or at decode by owner; of those that nobody waits for, `nobody`'s */
  readonly #active = new Map<number, number>();
  #company = 0;
  #numArrived = 0;
  #add: ((joining: JoiningCompletion) => number | undefined) | undefined;
  #running: Promise<void> = Promise.resolve();
  readonly #failure = new FirstFailure();
  readonly #startMs: number;
  #busySinceMs: number | undefined;
  #busyMs = 0;

  constructor(options: EpisodeHostOptions) {
    this.#options = options;
    this.#startMs = options.now();
  }

  /** Share of its time until now in which the rank had an episode to compute. */
  get busyShare(): number {
    const nowMs = this.#options.now();
    const busyMs = this.#busyMs + (this.#busySinceMs === undefined ? 0 : nowMs - this.#busySinceMs);
    return busyMs / Math.max(Number.MIN_VALUE, nowMs - this.#startMs);
  }

  /** Rejects with what a call of the engine threw, and never resolves. */
  get failed(): Promise<never> {
    return this.#failure.happened;
  }

  /** Of that owner: episodes queued or at decode. */
  activeOf(owner: number): number {
    return this.#active.get(owner) ?? 0;
  }

  /** Of all others. */
  activeBeside(owner: number): number {
    return this.#company - this.activeOf(owner);
  }

  run(hosted: HostedEpisode): void {
    this.#changed();
    const row: Row = {
      hosted,
      stay: new StayTrace(this.#options, hosted),
      priority: hosted.priority,
      arrival: undefined,
      answers: hosted.state?.answers ?? [],
      at: "decode",
      began: this.#beginning(hosted.state?.tokens.length ?? 0),
      move: undefined,
      isForgotten: false,
      isOrphan: false,
    };
    // The engine asks for the priority of the one that joins before it says its index.
    this.#rows.push(row);
    this.#open.add(row);
    this.#count(row, 1);
    this.#changed();
    if (this.#add?.(joiningOf(hosted)) !== undefined) return;
    this.#rows = [row];
    this.#running = this.#generate(hosted).catch(this.#failure.fail);
  }

  /** Once the tool has answered that it called behind so many answers; too late, the episode stays, as its owner has heard. */
  leave(owner: number, { episode, attempt, numAnswers, move }: Departure): void {
    const row = this.#rowOf(owner, episode, attempt);
    if (row?.at === "tool" && row.answers.length === numAnswers) row.move = move;
  }

  /** What its owner thinks of it now, from when it waits next. */
  prioritise(owner: number, { episode, attempt, priority }: Priority): void {
    const row = this.#rowOf(owner, episode, attempt);
    if (row) row.priority = () => priority;
  }

  /** Nobody waits for this episode any more. */
  forget(owner: number, episode: number): void {
    for (const row of this.#open)
      if (!row.isOrphan && row.hosted.owner === owner && row.hosted.episode === episode)
        this.#set(row, { isForgotten: true });
  }

  /** The owner is gone; what it has here goes on, as its prompts are somebody's again. */
  orphan(owner: number): void {
    for (const row of this.#open) {
      if (row.hosted.owner !== owner) continue;
      this.#set(row, { isOrphan: true });
      row.move = undefined;
    }
  }

  /** Ends what is left. */
  async end(): Promise<void> {
    for (const row of this.#open) this.#set(row, { isForgotten: true });
    if (this.#open.size > 0) this.#options.engine.abort();
    await this.#running;
    this.#options.measured.stepEnded();
  }

  async #generate(first: HostedEpisode): Promise<void> {
    const { engine, sampling, order, tool } = this.#options;
    const rows = this.#rows;
    const options: GenerateOptions = {
      order: { ...order, priority: (index) => this.#priorityOf(rows[index] as Row) },
      join: (add) => {
        this.#add = add;
        add(joiningOf(first));
      },
      ...(tool && { extend: (index, completion) => this.#extend(rows[index] as Row, completion) }),
      onCompletion: (index, completion) => this.#end(rows[index] as Row, completion),
    };
    await engine.generate([], sampling, options);
  }

  async #extend(row: Row, completion: Completion): Promise<Int32Array | undefined> {
    const { hosted } = row;
    const { tool, events } = this.#options;
    const { tokens, logprobs } = completion;
    if (row.isForgotten) return undefined;
    const calling = tool?.(hosted, completion, row.answers);
    if (!calling) return undefined;
    this.#set(row, { at: "tool" });
    this.#turnEnded(row, completion);
    if (row.isOrphan) events.changed();
    else events.turnEnded(hosted, { tokens, logprobs, answers: row.answers });
    const said = await calling;
    if (row.isForgotten) return undefined;
    if (said === sandboxGone) {
      this.#lose(row, completion);
      return undefined;
    }
    const { answer, ...outcome } = said;
    const state = answered(completion, row.answers, answer);
    const { answers } = state;
    row.answers = answers;
    row.stay.answered(outcome.toolSeconds);
    // The engine ends it with `length`, as it would wherever it goes on.
    if (hosted.prompt.length + state.tokens.length >= this.#options.contextLength) return answer;
    this.#set(row, { at: row.move ? "over" : "decode" });
    if (row.move) {
      this.#options.over(hosted, answers, true);
      row.stay.moved(state, row.move);
    } else {
      this.#changed();
      row.began = this.#beginning(state.tokens.length);
    }
    if (row.isOrphan) events.changed();
    else events.answered(hosted, state, outcome, row.at === "over");
    return row.at === "over" ? undefined : answer;
  }

  /** Its owner begins it again, as the rank that takes an orphan's prompt does. */
  #lose(row: Row, completion: Completion): void {
    this.#set(row, { at: "over" });
    row.stay.ended(completion, sandboxGone);
    this.#options.over(row.hosted, row.answers, false);
    if (row.isOrphan) this.#options.events.changed();
    else this.#options.events.lost(row.hosted);
  }

  #end(row: Row, completion: Completion): void {
    if (row.at === "over") return;
    // Whoever ends at a tool's answer has told of the turn before.
    if (row.at === "decode") this.#turnEnded(row, completion);
    this.#set(row, { at: "over" });
    this.#changed();
    const { tokens, logprobs } = completion;
    row.stay.ended(completion, row.isForgotten ? "nobody waits for it" : completion.finishReason);
    // Of an answer that had no room, nothing was appended.
    const answers = row.answers.filter(([from]) => from < tokens.length);
    this.#options.over(row.hosted, row.answers, false);
    const { events } = this.#options;
    const state = { tokens, logprobs, answers };
    if (row.isForgotten) events.changed();
    else if (row.isOrphan) events.orphanEnded(row.hosted, state, completion);
    else events.ended(row.hosted, state, completion);
  }

  /** Of an attempt whose owner lives. */
  #rowOf(owner: number, episode: number, attempt: number): Row | undefined {
    for (const row of this.#open) {
      const { hosted, isForgotten, isOrphan } = row;
      if (isForgotten || isOrphan || hosted.owner !== owner) continue;
      if (hosted.episode === episode && hosted.attempt === attempt) return row;
    }
    return undefined;
  }

  #priorityOf(row: Row): number {
    const { arrivals } = this.#options;
    if (row.isForgotten) return -Number.MAX_VALUE; // its owner's order knows it no more; engines take finite numbers
    if (arrivals === undefined) return row.priority();
    if (arrivals === "latest" || row.arrival === undefined) row.arrival = this.#numArrived++;
    return -row.arrival;
  }

  /** One that is over is open no more. */
  #set(row: Row, change: Partial<Pick<Row, "at" | "isForgotten" | "isOrphan">>): void {
    const isOpen = this.#open.has(row);
    if (isOpen) this.#count(row, -1);
    Object.assign(row, change);
    if (row.at === "over") this.#open.delete(row);
    else if (isOpen) this.#count(row, 1);
  }

  #count({ hosted, at, isForgotten, isOrphan }: Row, change: 1 | -1): void {
    if (at !== "decode") return;
    const owner = isForgotten || isOrphan ? nobody : hosted.owner;
    this.#active.set(owner, this.activeOf(owner) + change);
    this.#company += change;
  }

  /** Of a turn behind so many tokens, right after `changed`. */
  #beginning(numTokens: number): Row["began"] {
    return { mark: this.#options.measured.mark(), numTokens };
  }

  #turnEnded({ began: { mark, numTokens } }: Row, { tokens, finishReason }: Completion): void {
    this.#changed();
    // What was cut, or has begun again with other weights, is no whole turn.
    if (finishReason !== "abort") this.#options.measured.turnEnded(mark, tokens.length - numTokens);
  }

  /** Episodes have begun or ended to be computed. */
  #changed(): void {
    const { measured, now } = this.#options;
    const nowMs = now();
    measured.changed(nowMs / 1000, this.#company);
    if (this.#company > 0) this.#busySinceMs ??= nowMs;
    else if (this.#busySinceMs !== undefined) {
      this.#busyMs += nowMs - this.#busySinceMs;
      this.#busySinceMs = undefined;
    }
  }
}

const joiningOf = ({ prompt, key, state }: HostedEpisode): JoiningCompletion => ({
  ...{ prompt, key },
  ...(state && { begun: begunOf(state, state.answers) }),
});
