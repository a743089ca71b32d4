import type { ServiceError } from "@grpc/grpc-js";
import { type Completion, type Sampling, TreadleError } from "@treadle/contracts";
import { checkPrompts } from "../embedded/batches.ts";
import type { CompletionPiece, GenerateOptions, JoiningCompletion } from "../engine.ts";
import { checkBegun } from "../model-engine.ts";
import type { GenerateCall, Message, TorchClient } from "./torch-client.ts";
import {
  bytesOf,
  completionsIn,
  type Described,
  piecesIn,
  refuseReply,
  sendPrompts,
  type ToldCompletion,
} from "./torch-messages.ts";

/** Aborts that come before all prompts are on their way follow them. */
type Running = { readonly call: GenerateCall; isSent: boolean; readonly aborts: Abort[] };

/** One completion of a call, or all. */
type Abort = { readonly index?: number };

type Told = {
  /** of the engine's weights, as far as is known here */
  readonly policyVersion: () => number;
  /** a call is over, and the process may have other memory */
  readonly ended: () => Promise<void>;
  /** the process has failed a call, and not one who takes part in it here */
  readonly failed: (error: TreadleError) => void;
};

/** What the process of an engine generates: each call, and each turn of what joins one, is a call of its own there. */
export class TorchGenerations {
  readonly #client: TorchClient;
  readonly #described: Described;
  readonly #told: Told;
  /** between two replies that tell what completions have so far; undefined: none does */
  readonly #progressMs: number | undefined;
  readonly #running = new Set<Running>();
  /** of each call that is joined: cuts what has joined it and waits for the end of its turn */
  readonly #cutWaiting = new Set<() => void>();

  constructor(client: TorchClient, described: Described, progressMs: number | undefined, told: Told) {
    this.#client = client;
    this.#described = described;
    this.#progressMs = progressMs;
    this.#told = told;
  }

  abort(): void {
    for (const cut of this.#cutWaiting) cut();
    for (const running of this.#running) abort(running, {});
  }

  /** Completions that join are calls of their own in the process, which fills its places from all of them. */
  async generate(prompts: readonly Int32Array[], sampling: Sampling, options: GenerateOptions): Promise<Completion[]> {
    const { join, keys, extend, onCompletion, onProgress, signal } = options;
    const given: JoiningCompletion[] = prompts.map((prompt, index) => ({ prompt, key: keys?.[index] ?? index }));
    if (!join) return this.#call(given, sampling, options);
    const completions: Completion[] = [];
    const calls: Promise<void>[] = [];
    const others = new AbortController();
    let failure: { readonly error: unknown } | undefined;
    const fail = (error: unknown) => {
      failure ??= { error };
      others.abort(error);
    };
    let waiting = given;
    let numSent = 0;
    let isOver = false;
    const sent: { readonly from: number; readonly running: Running }[] = [];
    const isCut = new Set<number>();
    const cut = (index: number): boolean => {
      if (isOver || failure || completions[index] || isCut.has(index) || index >= numSent + waiting.length)
        return false;
      isCut.add(index);
      const call = sent.findLast(({ from }) => from <= index);
      if (call && index < numSent) abort(call.running, { index: index - call.from });
      return true;
    };
    const cutWaiting = () => {
      for (const at of waiting.keys()) isCut.add(numSent + at);
    };
    this.#cutWaiting.add(cutWaiting);
    /** Those that join in one turn are one call. */
    const send = () => {
      const [some, from] = [waiting, numSent];
      if (some.length === 0) return;
      waiting = [];
      numSent += some.length;
      const call = this.#call(
        some,
        sampling,
        {
          signal: others.signal,
          extend: extend && ((index, completion) => extend(from + index, completion)),
          onCompletion: (index, completion) => {
            completions[from + index] = completion;
            onCompletion?.(from + index, completion);
          },
          onProgress:
            onProgress && ((pieces) => onProgress(pieces.map((piece) => ({ ...piece, index: from + piece.index })))),
        },
        (running) => {
          sent.push({ from, running });
          for (const [at] of some.entries()) if (isCut.has(from + at)) abort(running, { index: at });
        },
      );
      calls.push(call.then(() => {}, fail));
    };
    const cancel = () => others.abort(signal?.reason);
    signal?.addEventListener("abort", cancel);
    if (signal?.aborted) cancel();
    try {
      join((joining) => {
        if (isOver || failure) return undefined;
        checkPrompts([joining.prompt], {}, this.#described.contextLength, this.#described.vocabSize);
        checkBegun(joining, sampling, this.#described.contextLength);
        if (waiting.length === 0) queueMicrotask(send);
        return numSent + waiting.push(joining) - 1;
      }, cut);
      await undefined; // whoever joins in this turn, joins the first call
      for (let at = 0; ; at++) {
        send();
        if (at === calls.length) break;
        await calls[at];
      }
      if (failure) throw failure.error;
      return completions;
    } finally {
      isOver = true;
      this.#cutWaiting.delete(cutWaiting);
      signal?.removeEventListener("abort", cancel);
    }
  }

  async #call(
    prompts: readonly JoiningCompletion[],
    sampling: Sampling,
    { signal, onCompletion, onProgress, extend }: GenerateOptions,
    begun: (running: Running) => void = () => {},
  ): Promise<Completion[]> {
    if (signal?.aborted) throw cancelled(signal);
    const completions: Completion[] = Array(prompts.length);
    const call = this.#client.generate();
    const cancel = () => call.cancel();
    signal?.addEventListener("abort", cancel);
    const running: Running = { call, isSent: false, aborts: [] };
    this.#running.add(running);
    begun(running);
    const sending = {
      isExtensible: extend !== undefined,
      progressMs: onProgress && this.#progressMs,
      policyVersion: this.#told.policyVersion(),
    };
    const bounds = { numCompletions: prompts.length, vocabSize: this.#described.vocabSize };
    let failure: { readonly error: unknown } | undefined;
    const failWith = (error: unknown) => {
      failure ??= { error };
      call.cancel();
    };
    const hold = async (index: number, attempt: number, completion: Completion) => {
      const tokens = await extend?.(index, completion);
      call.write({ extension: { index, attempt, ...(tokens && { tokens: bytesOf(tokens) }) } });
    };
    try {
      const ended = new Promise<void>((resolve, reject) => {
        let isRefused = false;
        const isEnded = new Set<number>();
        call.on("data", (reply: Message) => {
          if (isRefused) return;
          let pieces: CompletionPiece[];
          let told: ToldCompletion[];
          try {
            pieces = piecesIn(reply, bounds);
            told = completionsIn(reply, sampling.temperature, bounds);
            for (const { index, isHeld } of told) {
              if (isEnded.has(index)) refuseReply(`completion '${index}' after its end`);
              if (!isHeld) isEnded.add(index);
            }
          } catch (error) {
            isRefused = true;
            reject(error);
            call.cancel();
            return;
          }
          try {
            if (pieces.length > 0) onProgress?.(pieces);
            for (const { index, attempt, isHeld, completion } of told) {
              if (isHeld) {
                hold(index, attempt, completion).catch(failWith);
                continue;
              }
              completions[index] = completion;
              onCompletion?.(index, completion);
            }
          } catch (error) {
            failWith(error);
          }
        });
        call.on("end", resolve);
        call.on("error", reject);
      });
      ended.catch(() => {}); // awaited below
      const sent = sendPrompts(call, prompts, sampling, sending).then(() => {
        running.isSent = true;
        for (const one of running.aborts) call.write({ abort: one });
      });
      await Promise.race([ended, sent]);
      await ended;
      const missing = prompts.findIndex((_, index) => !completions[index]);
      if (missing >= 0) refuseReply(`the end of a call without completion '${missing}' of '${prompts.length}'`);
    } catch (error) {
      if (failure) throw failure.error;
      if (signal?.aborted) throw cancelled(signal);
      const isRefused = error instanceof TreadleError;
      const lost = isRefused ? error : await this.#client.failure("generate", error as ServiceError);
      this.#told.failed(lost);
      throw lost;
    } finally {
      this.#running.delete(running);
      signal?.removeEventListener("abort", cancel);
      call.end();
    }
    await this.#told.ended();
    return completions;
  }
}

function abort(running: Running, what: Abort): void {
  running.aborts.push(what);
  if (running.isSent) running.call.write({ abort: what });
}

const cancelled = (signal: AbortSignal): TreadleError =>
  new TreadleError("call.cancelled", "generate was cancelled by its caller", { cause: signal.reason });
