import type { FinishReason, ReleasableTag } from "@treadle/contracts";

/** A route that an engine needs, and what makes a server have it. */
export type RouteNeed = {
  readonly path: string;
  readonly purpose: string;
  readonly remedy: string;
  /** needed only where the server's devices are shared */
  readonly isForSharing?: boolean;
  /** needed only where adapters are loaded alone */
  readonly isForAdapters?: boolean;
  /** without it something is not checked, and a warning says so */
  readonly isOptional?: boolean;
};

/** Parts of its memory that a server releases without the rest, if it can. */
export type ServerTag = Exclude<ReleasableTag, "optimiser">;
export const serverTags: readonly ServerTag[] = ["weights", "cache"];

/** What a server says of itself. */
export type ServerFacts = {
  /** most tokens of a prompt and its completion; undefined where it does not say */
  readonly contextLength: number | undefined;
  /** empty where it does not say */
  readonly architectures: readonly string[];
  /** the same request has the same tokens, whatever runs beside it */
  readonly isDeterministic: boolean;
  /** undefined where it can give its memory back; else what it was started without */
  readonly lacksRelease: string | undefined;
  /** of its weights on each of its devices; undefined where it does not say, or cannot release them alone */
  readonly weightsBytes: number | undefined;
  /** undefined where it may take adapters; else what it was started without */
  readonly lacksAdapters: string | undefined;
  /** undefined where each token of a stream comes once; else what it was started without */
  readonly lacksStreams: string | undefined;
};

/** A completion, or a part of one. */
export type TokenRequest = {
  /** of this request alone */
  readonly id: string;
  readonly tokens: readonly number[];
  readonly maxTokens: number;
  readonly temperature: number;
  readonly stopTokens: readonly number[];
  /** in 31 bits, which every server takes */
  readonly seed: number;
  /** prefixes are shared among requests of one salt only */
  readonly salt: string;
  /** name of the adapter that computes it; default: none does */
  readonly adapter?: string | undefined;
};

export type TokenAnswer = {
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  readonly reason: FinishReason;
  /** of the weights that chose the tokens, where the server says it */
  readonly labels: readonly string[];
  /** of the likeliest first token, where it was asked for */
  readonly topLogprob?: number | undefined;
};

/** Tokens behind those of the parts before it. */
export type TokenPart = Pick<TokenAnswer, "tokens" | "logprobs">;

export type TokenOptions = {
  readonly signal?: AbortSignal;
  readonly timeoutMs: number;
  /** also the log-probability of the likeliest first token */
  readonly withTop?: boolean;
  /** takes what is chosen as it comes; the answer has all of it. Absent: the answer comes as a whole */
  readonly onPart?: ((part: TokenPart) => void) | undefined;
};

/**
 * What differs between servers: their routes, and how they say things. Methods throw what `HttpClient.json` throws, and
 * `service.failed` for answers that are not as the server's own sources say.
 */
export interface ServerProtocol {
  readonly name: string;
  readonly needs: readonly RouteNeed[];
  /** what makes log-probabilities those of the distribution that is sampled */
  readonly logprobRemedy: string;
  readonly determinismRemedy: string;
  /** whether a draw depends on the seed and the position of its token, and else on how many its request had before */
  readonly drawsByPosition: boolean;
  describe(): Promise<ServerFacts>;
  generate(request: TokenRequest, options: TokenOptions): Promise<TokenAnswer>;
  /** The server ends requests of these ids; one that it does not have is none. */
  abort(ids: readonly string[]): Promise<void>;
  /** The server computes for nobody until `resume`. */
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Loads a folder's weights into a paused server, and forgets what was computed with others. */
  load(folder: string, label: string, timeoutMs: number): Promise<void>;
  /** Loads the adapter in a folder into a paused server, under a name that it has not had, and forgets what was computed before. */
  loadAdapter(folder: string, name: string, timeoutMs: number): Promise<void>;
  /** Nothing computes with it any more. */
  unloadAdapter(name: string): Promise<void>;
  /** The label that the last load of whole weights gave. */
  label(): Promise<string>;
  /** Of the weights as the server holds them; undefined where it cannot say. Only while it is not paused. */
  checksum(): Promise<string | undefined>;
  /** Of an idle server; undefined: all of it. */
  release(tags: readonly ServerTag[] | undefined): Promise<void>;
  /** Its memory, or that of tags which were released, is there again; what was in it need not be. */
  restore(tags: readonly ServerTag[] | undefined): Promise<void>;
  /** Throws unless the server answers. */
  alive(): Promise<void>;
}
