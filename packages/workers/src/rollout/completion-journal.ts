/**
 * What the completions of a call have so far, in the host's memory: whoever is given their prompts after a death goes on there.
 *
 * A process writes a file of its own for each call, and removes it when the call has made all that it was given. Others of its
 * component on the node read it once it is dead; a process reads its own of a call that failed.
 * CJ1 what is kept goes on only under the weights and the sampling, and from the prompt and the key, that it was sampled with: it is
 *     what would be sampled again, up to rounding. A server that draws by request samples something else, as likely.
 * CJ2 a file counts up to the first record that is not whole: what is behind it is sampled again.
 * CJ3 whatever fails here, or has no room, costs what would have been kept, and no call.
 */
import { createHash } from "node:crypto";
import { closeSync, constants, fstatSync, openSync, readdirSync, readFileSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";
import type { FinishReason, HostFiles } from "@treadle/contracts";
import type { Span } from "./episode-stream.ts";

/** of one call; beyond it nothing more is kept of it */
const mostBytes = 64 * 2 ** 20;
const openToOthers = 0o077;
/** between two looks at which files there are; whether their writers live is seen each time */
const listingMs = 1_000;
/** of what all completions of a file depend on, and of what one does, in words */
const digestWords = 8;
const digestedWords = 3;
/** with its key */
const idWords = digestedWords + 1;
/** words of a record before its answers: its own length, whose it is, from which token on, tokens, reason, answers */
const headWords = 1 + idWords + 4;
const reasons: readonly (FinishReason | undefined)[] = [undefined, "stop", "length"];

export type KeptCompletion = {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  /** where a tool's tokens stand, of one that has ended */
  readonly answers: readonly Span[];
  /** undefined: it goes on */
  readonly finishReason: FinishReason | undefined;
};

/** From that token on; what was known behind it counts no more. */
export type KeptPart = Omit<KeptCompletion, "answers" | "finishReason"> &
  Partial<Pick<KeptCompletion, "answers" | "finishReason">> & { readonly id: string; readonly from: number };

/** What a step reports of a rank on which completions went on after a death. */
export type ResumedMetrics = {
  readonly completionsResumed?: number;
  /** that they had, and that were not chosen again */
  readonly tokensResumed?: number;
};

export type CompletionJournalOptions = {
  readonly hostFiles: HostFiles;
  readonly component: string;
  readonly rank: number;
  /** everything that completions of the call depend on beside their prompts and keys, the weights among it (CJ1) */
  readonly sampledBy: unknown;
  /** Whether they are still those weights; once they are not, nothing more is kept. */
  readonly isCurrent: () => boolean;
  readonly log: { readonly info: (message: string) => void; readonly warn: (message: string) => void };
};

export class CompletionJournal {
  readonly #options: CompletionJournalOptions;
  readonly #digest: Buffer;
  readonly #stem: string;
  readonly #name: string;
  /** not read yet, as their writers lived */
  readonly #unread = new Map<string, Owner>();
  readonly #read = new Map<string, Owner>();
  #listedMs = Number.NEGATIVE_INFINITY;
  #numFound = 0;
  #numTokens = 0;
  #isStopped = false;
  readonly #kept = new Map<string, KeptCompletion>();
  #file: number | undefined;
  #numBytes = 0;
  static #numOpened = 0;
  /** of prompts, which have several samples each */
  static readonly #digests = new WeakMap<Int32Array, string>();

  constructor(options: CompletionJournalOptions) {
    this.#options = options;
    const { hostFiles, component, rank, sampledBy } = options;
    this.#digest = createHash("sha256").update(JSON.stringify(sampledBy)).digest();
    this.#stem = `${hostFiles.leftPrefix}completions-${component}-`;
    this.#name = `${this.#stem}${rank}-${process.pid}-${CompletionJournal.#numOpened++}`;
    this.#guard(() => {
      const { O_WRONLY, O_CREAT, O_EXCL, O_APPEND } = constants;
      this.#file = openSync(join(hostFiles.folder, this.#name), O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0o600);
      this.#write(this.#digest);
    });
  }

  /** Whose it is (CJ1); `begun`: what it had from an earlier step. */
  static idOf(prompt: Int32Array, key: number, begun?: Int32Array): string {
    const ofPrompt = begun ? undefined : CompletionJournal.#digests.get(prompt);
    const digest = ofPrompt ?? digestOf(prompt, begun);
    if (!begun) CompletionJournal.#digests.set(prompt, digest);
    return digest + (key >>> 0).toString(16).padStart(8, "0");
  }

  /** What a process that is dead by now, or a call that failed, had of it. */
  find(id: string): KeptCompletion | undefined {
    if (this.#isStopped || !this.#options.isCurrent()) return undefined;
    if (!this.#kept.has(id)) this.#look();
    const kept = this.#kept.get(id);
    if (kept) this.#numFound++;
    this.#numTokens += kept?.tokens.length ?? 0;
    return kept;
  }

  get metrics(): ResumedMetrics {
    return this.#numFound === 0 ? {} : { completionsResumed: this.#numFound, tokensResumed: this.#numTokens };
  }

  /** In one piece, which the process that reads it after a death has whole, or not. */
  keep(parts: readonly KeptPart[]): void {
    if (this.#file === undefined || parts.length === 0) return;
    if (!this.#options.isCurrent()) this.stop();
    else this.#guard(() => this.#write(recordsOf(parts)));
  }

  /** Nothing is kept of this call, and nothing goes on in it: completions have begun again with other weights. */
  stop(): void {
    this.#isStopped = true;
    this.close();
    this.#remove(this.#name);
  }

  /** All that the call was given is made: nobody is given it again. */
  done(): void {
    const { rank, log } = this.#options;
    this.stop();
    for (const [name, owner] of this.#read) if (owner.rank === rank) this.#remove(name);
    if (this.#numFound > 0)
      log.info(
        `'${this.#numFound}' completions went on with '${this.#numTokens}' tokens that a process before had of them`,
      );
  }

  /** What is written stays, for whoever is given the prompts next. */
  close(): void {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
  }

  #remove(name: string): void {
    this.#try(() => rmSync(this.#pathOf(name), { force: true }));
  }

  #pathOf(name: string): string {
    return join(this.#options.hostFiles.folder, name);
  }

  #look(): void {
    if (performance.now() - this.#listedMs >= listingMs) this.#try(() => this.#list());
    for (const [name, owner] of this.#unread) {
      if (owner.pid !== process.pid && isAlive(owner.pid)) continue;
      this.#unread.delete(name);
      this.#read.set(name, owner); // also one that cannot be read: it is told once
      this.#try(() => {
        for (const [id, kept] of readJournal(this.#pathOf(name), this.#digest)) {
          const known = this.#kept.get(id);
          const isMore = kept.finishReason || !known || kept.tokens.length > known.tokens.length;
          if (isMore && !known?.finishReason) this.#kept.set(id, kept);
        }
      });
    }
  }

  #list(): void {
    this.#listedMs = performance.now();
    for (const name of readdirSync(this.#options.hostFiles.folder)) {
      const owner = ownerOf(name, this.#stem);
      if (owner && name !== this.#name && !this.#read.has(name)) this.#unread.set(name, owner);
    }
  }

  #write(bytes: Uint8Array): void {
    if (this.#file === undefined) return;
    if (this.#numBytes + bytes.byteLength > mostBytes)
      throw new Error(`it would take more than ${mostBytes} bytes of the host's memory`);
    this.#numBytes += bytes.byteLength;
    if (writeSync(this.#file, bytes) < bytes.byteLength) throw new Error("there is no room");
  }

  /** CJ3. */
  #guard(write: () => void): void {
    try {
      write();
    } catch (error) {
      this.close();
      this.#options.log.warn(
        `what completions have so far is kept no more in this call, and begins again where the engine dies: ${(error as Error).message}`,
      );
    }
  }

  /** CJ3. What others wrote or left does not keep this call from writing. */
  #try(act: () => void): void {
    try {
      act();
    } catch (error) {
      this.#options.log.warn(`what completions had before may begin again: ${(error as Error).message}`);
    }
  }
}

type Owner = { readonly rank: number; readonly pid: number };

function ownerOf(name: string, stem: string): Owner | undefined {
  if (!name.startsWith(stem)) return undefined;
  const [, rank, pid] = /^(\d+)-(\d+)-\d+$/.exec(name.slice(stem.length)) ?? [];
  return pid === undefined ? undefined : { rank: Number(rank), pid: Number(pid) };
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== "ESRCH";
  }
}

function digestOf(prompt: Int32Array, begun: Int32Array = new Int32Array()): string {
  const hash = createHash("sha256").update(Uint32Array.of(prompt.length, begun.length));
  return hash
    .update(bytesOf(prompt))
    .update(bytesOf(begun))
    .digest()
    .toString("hex", 0, 4 * digestedWords);
}

function recordsOf(parts: readonly KeptPart[]): Buffer {
  const wordsOf = ({ tokens, answers = [] }: KeptPart) => headWords + 2 * answers.length + 2 * tokens.length;
  const words = new Int32Array(parts.reduce((sum, part) => sum + wordsOf(part), 0));
  const floats = new Float32Array(words.buffer);
  const bytes = Buffer.from(words.buffer);
  let at = 0;
  for (const part of parts) {
    const { id, from, tokens, logprobs, answers = [], finishReason } = part;
    words[at] = wordsOf(part);
    bytes.write(id, 4 * (at + 1), "hex");
    words.set([from, tokens.length, reasons.indexOf(finishReason), answers.length], at + 1 + idWords);
    words.set(answers.flat(), at + headWords);
    at += headWords + 2 * answers.length;
    words.set(tokens, at);
    floats.set(logprobs, at + tokens.length);
    at += 2 * tokens.length;
  }
  return bytes;
}

/** CJ1, CJ2. Empty where it is another call's, or another user's. */
function readJournal(path: string, digest: Buffer): Map<string, KeptCompletion> {
  const bytes = readOwn(path);
  if (!bytes?.subarray(0, 4 * digestWords).equals(digest)) return new Map();
  const words = new Int32Array(Uint8Array.from(bytes.subarray(0, bytes.length - (bytes.length % 4))).buffer);
  const floats = new Float32Array(words.buffer);
  const found = new Map<string, Known>();
  for (let at = digestWords; at + headWords <= words.length; ) {
    const numWords = words[at] as number;
    const [from, numTokens, reason, numAnswers] = [...words.subarray(at + 1 + idWords, at + headWords)] as FourWords;
    const isWhole = from >= 0 && numTokens >= 0 && numAnswers >= 0 && at + numWords <= words.length;
    if (!isWhole || numWords !== headWords + 2 * numAnswers + 2 * numTokens) break;
    const id = Buffer.from(bytesOf(words.subarray(at + 1, at + 1 + idWords))).toString("hex");
    const spans = words.subarray(at + headWords, at + headWords + 2 * numAnswers);
    const tokensAt = at + headWords + spans.length;
    at += numWords;
    const known: Known = found.get(id) ?? { tokens: [], logprobs: [], answers: [], finishReason: undefined };
    if (from > known.tokens.length) continue;
    found.set(id, known);
    known.tokens.length = known.logprobs.length = from;
    for (let i = tokensAt; i < tokensAt + numTokens; i++) {
      known.tokens.push(words[i] as number);
      known.logprobs.push(floats[i + numTokens] as number);
    }
    known.answers = Array.from({ length: numAnswers }, (_, i) => [spans[2 * i] as number, spans[2 * i + 1] as number]);
    known.finishReason = reasons[reason];
  }
  // Of one that began once more, nothing may be left.
  const some = [...found].filter(([, { tokens, finishReason }]) => tokens.length > 0 || finishReason);
  const kept = some.map(([id, { tokens, logprobs, ...ended }]): [string, KeptCompletion] => [
    id,
    { tokens: Int32Array.from(tokens), logprobs: Float32Array.from(logprobs), ...ended },
  ]);
  return new Map(kept);
}

type FourWords = [number, number, number, number];
type Known = { tokens: number[]; logprobs: number[]; answers: Span[]; finishReason: FinishReason | undefined };

/** Undefined where it is gone, or somebody else owns or may open it. Throws for what is no file. */
function readOwn(path: string): Buffer | undefined {
  let file: number;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  try {
    const { uid, mode } = fstatSync(file);
    return uid === process.getuid?.() && (mode & openToOthers) === 0 ? readFileSync(file) : undefined;
  } finally {
    closeSync(file);
  }
}

const bytesOf = ({ buffer, byteOffset, byteLength }: Int32Array | Float32Array | Uint8Array): Uint8Array =>
  new Uint8Array(buffer, byteOffset, byteLength);
