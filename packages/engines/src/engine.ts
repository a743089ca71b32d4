import type {
  Completion,
  LossMetrics,
  LossSpec,
  ReleasableTag,
  Sampling,
  SharedWeights,
  TagMemory,
  TrainBatch,
  TreadleError,
  WeightLink,
  Weights,
  WeightTicket,
} from "@treadle/contracts";
import { z } from "zod";
import type { Pieces } from "./pieces.ts";
import type { WorkSums } from "./work-meter.ts";

/**
 * What a worker asks of whatever runs its model. Embedded, emulated and remote engines answer the same calls, so a
 * worker never knows which one it has. One object may be both a generation and a training engine.
 *
 * Lifecycle: loaded -> release() -> released -> restore() -> loaded. On a released engine, calls that compute or change
 * parameters throw `engine.released`; what reads the host's copy (exportWeights, save, gradients) still answers. An engine whose
 * memory has tags is released and restored tag by tag, too; a call is refused while a tag that it needs is released. Release
 * and restore are idempotent. Only an idle engine is released: what it computes would lose its memory. A worker makes its
 * engine without memory on devices, and loads it by its first `restore`, under the device lock.
 */
export interface Engine {
  /**
   * Engines of one kind give the same log-probabilities wherever they have the same weights: embedded ones bit for bit,
   * those on PyTorch up to rounding, which depends on what is computed beside.
   */
  readonly kind: string;
  /** The version of the parameters that the next call uses. Starts at 0, grows by one with each optimiser step. */
  readonly policyVersion: number;
  /**
   * Tells its weights from all others, those of the same version included: a step that was undone and is made again, in another
   * order of what came, has other weights under the same version. Undefined where only `exportWeights` or `publish` tells: after an optimiser step,
   * a checkpoint, or a load that did not get whole into a server.
   */
  readonly weightsId: string | undefined;
  memory(): EngineMemory;
  /**
   * Undefined while nothing is computed and nothing waits to be; otherwise resolves when that is so. Others may have the
   * devices of an idle engine only. A call that has returned is not computing any more when its caller goes on.
   */
  idle(): Promise<void> | undefined;
  /** Who is told, within the code that asks for it, whenever something begins to be computed, which `idle` tells of by then. Absent: nobody is. */
  onComputing?(begins: () => void): void;
  /** What it has computed since this was asked last, up to now; absent where it does not count. */
  takeWork?(): WorkSums;
  /** Which components of other runs compute on its devices from here on: said to engines that are slowed by that as they are told. */
  computesBeside?(components: readonly string[]): void;
  /**
   * W3 nothing is generated on half-updated weights: all parameters are replaced at once. Verifies names, shapes and checksum first and throws
   * `engine.weights-mismatch` with the old parameters untouched. Completions that are running start again from
   * their prompts, so every completion comes from exactly one version, unless `onNewWeights` says otherwise.
   */
  loadWeights(weights: Weights): Promise<void>;
  /** Whether it could read the files that the ticket names, or map the device's memory: they are of its own run, on a file system and a device that it sees. */
  opens?(ticket: WeightTicket): Promise<boolean>;
  /**
   * As `loadWeights` (W3), of weights that another engine has published, whose bytes never pass through Node: over the link, where one is
   * given. Absent, with `opens`, where an engine takes bytes alone. Throws `engine.weights-mismatch`, which names the tensor, for a file that is missing, cut
   * short, altered or another's.
   */
  loadTicket?(ticket: WeightTicket, link?: WeightLink): Promise<void>;
  /**
   * Whether the ticket's engine sends it what it cannot open, over a link: then which it has to it already, `""` for none. `undefined`
   * where it does not. Absent, with `join`, where an engine has no links.
   */
  linkTo?(ticket: WeightTicket): string | undefined;
  /** Meets the ticket's engine there; nothing where it has the link. Throws `worker.late` or `link.closed`. */
  join?(ticket: WeightTicket, link: WeightLink): Promise<void>;
  /**
   * The rank of the trainer whose module it computes with; absent where its weights are its own. Such an engine loads none: it computes
   * with what the trainer has, whatever it was told last, and starts its completions over at each step of the trainer. `policyVersion` is
   * that of its last answer, and `weightsId` is undefined once it knows of others than it took.
   */
  readonly trainerRank?: number;
  /** Of an engine with `trainerRank`: from now on its weights are these or newer ones. Moves nothing. Throws `service.failed` when they are in another process. */
  takeShared?(weights: SharedWeights): Promise<void>;
  /**
   * Gives the model's device memory back; a host copy of the parameters stays. Calls that run end with `engine.released`,
   * or the release itself is refused with `engine.busy` by an engine that cannot take memory from what computes. `tags`: only those, of
   * an engine that tells any; default: all.
   */
  release(tags?: readonly ReleasableTag[]): Promise<void>;
  /** Brings a released model back, or those tags of it, with identical parameters and optimiser state. */
  restore(tags?: readonly ReleasableTag[]): Promise<void>;
  /** Ends running calls as `release` does and frees everything; the engine is not used again. */
  close(): Promise<void>;
  /** Resolves when it can compute no more and was not closed: a process of its own has ended. Absent where it has none. */
  readonly ended?: Promise<TreadleError> | undefined;
}

export type EngineMemory = {
  /** Bytes on the device: parameters, and what the engine keeps between calls; what is released counts with what its release has left. */
  readonly residentBytes: number;
  /** Bytes on the device while it is loaded; before it first is, an estimate, or 0 where there is none. */
  readonly loadedBytes: number;
  /** Of `loadedBytes`, what is released and restored by itself; all that it ever has, those without bytes as well. Absent: it is one piece. */
  readonly tags?: readonly TagMemory[] | undefined;
  /** Bytes of host copies, optimiser state and gradients, which survive a release. */
  readonly hostBytes: number;
};

/**
 * What becomes of a completion that has begun when its engine gets other weights: `restart`: its turn under way is drawn once more; `recompute`: it
 * keeps its tokens, and their keys and values are computed with the new weights; `keep`: it keeps these, too.
 */
export const OnNewWeights = z.enum(["restart", "recompute", "keep"]);
export type OnNewWeights = z.infer<typeof OnNewWeights>;

export type GenerateOptions = {
  /**
   * Of engines with `heedsNewWeights`; others refuse it with `engine.invalid-request`. Completions say the version of each token
   * then. What `extend` was asked about, or has answered, is kept. With `keep`, keys and values of what is cut stay in the
   * engine, as many as it has places, until it is released: what joins with the same key behind the same tokens goes on with them, and is
   * computed as with `recompute` where they are gone. Default: completions start again from their prompts, answers of `extend` included.
   */
  readonly onNewWeights?: OnNewWeights | undefined;
  /**
   * What each completion's draws depend on beside the seed, uint32, one a prompt; default: its index in the call. Named by
   * what a completion is, such as its prompt's id and which sample of it, its tokens are the same however calls are cut.
   */
  readonly keys?: readonly number[] | undefined;
  /** Rejects the call with `call.cancelled`; finished completions were already passed to `onCompletion`. */
  readonly signal?: AbortSignal | undefined;
  /** Called once for each prompt as soon as its completion ends, in order of finishing. */
  readonly onCompletion?: ((index: number, completion: Completion) => void) | undefined;
  /**
   * Called when a completion has chosen a stop token and may choose more: what to append before it goes on in its place,
   * such as the result of a tool, or undefined when it is complete. Other completions go on meanwhile. Appended tokens are
   * read, not chosen: their log-probability is 0, and they do not count towards `maxTokens`; a completion without room for
   * them ends with `length`. Called again for a completion that starts over. What it throws, `generate` throws.
   */
  readonly extend?: ((index: number, completion: Completion) => Promise<Int32Array | undefined>) | undefined;
  /**
   * Which completions are computed first where not all are at once; default: in the order of the prompts. It changes no
   * token and no log-probability. An engine whose batches are made elsewhere, as on PyTorch, does not heed it.
   */
  readonly order?: GenerationOrder | undefined;
  /**
   * What completions that go on have chosen since it was called last, and what was appended to them: whoever keeps it can begin there
   * where the engine dies. One that ends, or may be extended, is told of by `onCompletion` or `extend`, with all that it has. Called
   * at most once in `engine.streamMs` for what began together, by engines that say so (`tellsProgress`).
   */
  readonly onProgress?: ((pieces: readonly CompletionPiece[]) => void) | undefined;
  /**
   * Called once at the start, with what adds completions to the call while it runs: `add` returns the index of the new one,
   * counted on from the prompts, or undefined once the call is over, which it is when nothing is unfinished. What joins shares the
   * places of the others. By it a rollout fills each place that becomes free with the next of its prompts. `cut` comes with it
   * from engines that can end one completion and leave the others: embedded and emulated ones, and PyTorch.
   */
  readonly join?: ((add: (joining: JoiningCompletion) => number | undefined, cut?: CutCompletion) => void) | undefined;
};

/**
 * Ends one completion of a call at its next token, whether it runs, waits for a place, or for what `extend` appends. It has what
 * was chosen so far, reason `abort`, and `onCompletion` has been told of it when this returns, or is told once the process of an engine
 * that has its own has ended it. Its place is free; the others keep their tokens. False where it has ended already, or was cut before.
 */
export type CutCompletion = (index: number) => boolean;

/** Part of one completion of a call. */
export type CompletionPiece = Pick<Completion, "tokens" | "logprobs"> & {
  readonly index: number;
  /** how often it has begun again, with other weights */
  readonly attempt: number;
  /** behind how many of its tokens; what was told behind them before counts no more */
  readonly from: number;
};

/**
 * A completion that joins a call; one that has begun elsewhere goes on behind its last token, as it would have there. One that
 * has no room for another token is refused with `engine.invalid-request`.
 */
export type JoiningCompletion = {
  readonly prompt: Int32Array;
  /** as in `keys` */
  readonly key: number;
  readonly begun?: BegunCompletion | undefined;
};

/** What a completion has so far, what was appended to it included; `versions`: absent where the weights are those of the engine that it joins. */
export type BegunCompletion = Pick<Completion, "tokens" | "logprobs" | "versions"> & {
  readonly numAppended: number;
  /** where the turn under way began: behind the last that was appended */
  readonly turnFrom: number;
};

/** Of one call: which of its completions get the places that there are. */
export type GenerationOrder = {
  /**
   * Finite; the highest goes first, of equal ones that of the lowest index. Asked whenever a completion begins to wait: at
   * the start, after what `extend` appended, and when it starts over. What it throws, `generate` throws.
   */
  readonly priority: (index: number) => number;
  /**
   * Completions that may have begun beyond those that are computed, with keys and values kept: they were displaced, or
   * have left their place to another while `extend` works. Default 0: a completion keeps its place until it ends.
   */
  readonly spareCaches?: number | undefined;
  /** Lets a completion that waits take the place of one that runs, between two of its tokens; absent: never. */
  readonly displace?: DisplaceRule | undefined;
};

/** So that predictions which differ by their noise alone displace nothing. */
export type DisplaceRule = {
  /** by what share of its own a running completion's priority must be exceeded */
  readonly margin: number;
  /** tokens that a completion chooses before it can be displaced, counted from when it got its place */
  readonly minTokens: number;
};

export interface GenerationEngine extends Engine {
  /**
   * One completion a prompt, in the order of the prompts. The same weights, prompt, seed and key give the same tokens
   * with the same log-probabilities, whatever else is in the call, and whatever calls beside it. Log-probabilities are those of the distribution sampled from (`Completion`).
   * Throws `engine.invalid-request` for an empty prompt, one longer than the context, or a token id out of range.
   */
  generate(prompts: readonly Int32Array[], sampling: Sampling, options?: GenerateOptions): Promise<Completion[]>;
  /** Whether it does as `onNewWeights` says. Absent: it refuses that. */
  readonly heedsNewWeights?: boolean;
  /** Whether it calls `onProgress`. Absent: it does not, as engines in this process, which die with it. */
  readonly tellsProgress?: boolean;
  /** Ends every running generation at its next token; its completions have what was chosen so far, reason `abort`. */
  abort(): void;
  /** Returns when no token is being computed; running generations wait at their next token until `resume`. */
  pause(): Promise<void>;
  resume(): void;
}

/** AdamW with decoupled weight decay, which applies to matrices only. */
export type OptimStep = {
  readonly learningRate: number;
  /** Multiplies the accumulated gradient before anything else: one over the total weight, for a mean. Default 1. */
  readonly scale?: number | undefined;
  /** Bound of the scaled gradient's global norm. Default: none. */
  readonly maxGradNorm?: number | undefined;
  readonly beta1?: number | undefined;
  readonly beta2?: number | undefined;
  readonly epsilon?: number | undefined;
  readonly weightDecay?: number | undefined;
};

/** The sums that a loss reports, in the order in which compiled programs return them. */
export const lossMetricNames = [
  "loss",
  "weight",
  "kl",
  "entropy",
  "clipFraction",
  "valueLoss",
] as const satisfies readonly (keyof LossMetrics)[];

/**
 * A rectangle of token rows: `[rows, columns]`, row-major, padded at the end with any valid token. Where there are weights,
 * entries of weight 0 need no answer: an engine may leave them 0.
 */
export type TokenRows = Pick<TrainBatch, "rows" | "columns" | "tokens" | "temperatures"> & {
  readonly weights?: TrainBatch["weights"] | undefined;
};

/** At once in this process, later from another. */
export type Awaitable<T> = T | Promise<T>;

/** The part of training that does not depend on what a batch is. */
export interface Trainable extends Engine {
  /** The accumulated gradient, flat in the order of the parameters of `exportWeights`; what data-parallel ranks sum. */
  gradients(): Awaitable<Float32Array>;
  setGradients(gradients: Float32Array): Awaitable<void>;
  /**
   * Applies the accumulated gradient, zeroes it, and increments `policyVersion`. `gradNorm` is that of the scaled
   * gradient before clipping. Throws `engine.diverged`, with the parameters untouched, when it is not finite.
   */
  optimStep(step: OptimStep): Promise<{ readonly gradNorm: number }>;
  exportWeights(): Awaitable<Weights>;
  /**
   * Has the weights as they are ready for other engines, in files that these read or in memory that they map, and removes those that it
   * published before. Absent, with `readTicket`, where an engine hands out bytes alone; undefined where it is configured to.
   */
  publish?(): Promise<Publication | undefined>;
  /** What engines have that compute with its module; absent where none may. */
  readonly shared?: SharedWeights | undefined;
  /**
   * The same weights in files, where the ticket says that they are on a device. Throws `engine.weights-mismatch` when newer ones have
   * taken their place. Absent where an engine publishes on none.
   */
  writeFile?(ticket: WeightTicket): Promise<Publication>;
  /** A link over which it sends its files to one engine more: the known one while it lasts, else a place where it waits for it. Absent where it has none. */
  offer?(known: string): Promise<WeightLink>;
  /** What the ticket, its own, of files, and not replaced yet, has published, as bytes: for engines that cannot read these. */
  readTicket?(ticket: WeightTicket): Promise<Weights>;
  /**
   * Parameters, optimiser state and version, with a checksum, piece by piece and of any size: those after the calls before
   * it, whatever is called while the pieces are read. They are read once, or written by an engine that has a process of its own.
   */
  save(): SavedPieces;
  /**
   * The inverse of `save`; drops accumulated gradients. Throws `checkpoint.corrupt`, or what the pieces throw, and leaves the
   * engine as it was.
   */
  load(checkpoint: PiecesToLoad): Promise<void>;
  /** The same as `save` in files, one of each of its processes, which write them at once; absent, or undefined, where one has all. */
  saveFiles?(): readonly FileToSave[] | undefined;
  /** The inverse, whatever number of processes has saved them. Throws as `load`. Absent where an engine reads none. */
  loadFiles?(files: readonly FileToLoad[]): Promise<void>;
}

/** `checkedPath`, in place of the pieces: the file that has them, on this machine, for an engine that has a process of its own. */
export type PiecesToLoad = Pieces & { checkedPath?(): Promise<string> };

/** `writeTo`, in place of the pieces: writes them to a file on this machine, flushed to its disk. Rejects with `disk.full`. */
export type SavedPieces = AsyncIterable<Uint8Array> & {
  writeTo?(path: string): Promise<{ readonly sizeBytes: number; readonly sha256: string }>;
};

/** Its name must be the end of the file's. */
export type FileToSave = Required<SavedPieces> & { readonly name: string };

/** The path on this machine, of a file that was checked. */
export type FileToLoad = { checkedPath(): Promise<string> };

/** Where there is no place for files, the reason: the weights travel as bytes then. */
export type Publication = { readonly ticket: WeightTicket } | { readonly obstacle: string };

export interface TrainingEngine extends Trainable {
  /**
   * Adds the gradient of `sum(weights * term)` over the batch to the accumulated gradient. Any number of rows, none included, which
   * a rank has that is done before its fellow ranks; splitting a batch over several calls gives the same sum up to rounding.
   */
  forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<LossMetrics>;
  /** Log-probability of each token given those before it, at its row's temperature, `[rows, columns]`; entry `[r, 0]` is 0. */
  logprobs(rows: TokenRows): Promise<Float32Array>;
  /**
   * The critic's estimate, before each token, of what is still to come, `[rows, columns]`; entry `[r, 0]` is 0. Throws
   * `engine.invalid-request` when the model has no value head.
   */
  values(rows: TokenRows): Promise<Float32Array>;
}

export type ActOptions = {
  /** The same parameters, observations, seed and row give the same action. Default 0. */
  readonly seed?: number | undefined;
  /** A seed for each row, in place of `seed`: a row then acts as it does alone, whatever rows are beside it. */
  readonly seeds?: Uint32Array | undefined;
  /** The distribution's mean instead of a sample. Default false. */
  readonly greedy?: boolean | undefined;
};

/** What a policy does in `rows` situations: `actions` is `[rows, actionSize]`, the rest `[rows]`. */
export type Actions = {
  readonly actions: Float32Array;
  readonly logprobs: Float32Array;
  /** Estimated returns. */
  readonly values: Float32Array;
};

/** Steps of episodes, in any order: `observations` `[rows, observationSize]`, `actions` `[rows, actionSize]`, rest `[rows]`. */
export type ControlBatch = {
  readonly rows: number;
  readonly observations: Float32Array;
  readonly actions: Float32Array;
  /** Mask and normalisation, as in `TrainBatch`. */
  readonly weights: Float32Array;
  readonly advantages: Float32Array;
  readonly oldLogprobs: Float32Array;
  readonly returns: Float32Array;
  readonly oldValues: Float32Array;
};

/** PPO's clipped objective with a value term: `policy + valueCoefficient * value - entropyCoefficient * entropy`. */
export type ControlLoss = {
  readonly clipLow: number;
  readonly clipHigh: number;
  /** of half the squared error between value and return */
  readonly valueCoefficient: number;
  /** Bound on how far a value moves from its old one before its error stops counting; absent means none. */
  readonly valueClip?: number | undefined;
  readonly entropyCoefficient: number;
};

export interface ControlEngine extends Trainable {
  /** Acts on `observations` `[rows, observationSize]`. */
  act(observations: Float32Array, rows: number, options?: ActOptions): Promise<Actions>;
  /** As `TrainingEngine.forwardBackward`; `kl` is the k3 estimate of the divergence from the policy that acted. */
  forwardBackward(batch: ControlBatch, loss: ControlLoss): Promise<LossMetrics>;
}
