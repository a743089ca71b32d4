/** An exchange whose answers are promises, for tests that read like workers. Swaps take a turn of the event loop. */
import type { TreadleError, WaitTerms } from "@treadle/contracts";
import type { CallOutcome } from "../../src/channel/channel-messages.ts";
import { Exchange } from "../../src/runner/exchange.ts";
import type { Answer, ChannelEnd, RunnerEffect } from "../../src/runner/runner-messages.ts";

type Waiting = { resolve: (answer: Answer) => void; reject: (error: unknown) => void };

export class ExchangeWorld {
  readonly moves: string[] = [];
  readonly #waiting = new Map<number, Waiting>();
  readonly exchange: Exchange;
  readonly #memory: Readonly<Record<string, number>>;
  #lastRequest = 0;
  #sequence = 0;

  constructor(
    memory: Readonly<Record<string, number>> = {},
    options: { readonly failing?: string; readonly lockTimeoutMs?: number } = {},
  ) {
    this.#memory = memory;
    this.exchange = new Exchange({
      lockTimeoutMs: options.lockTimeoutMs ?? Number.POSITIVE_INFINITY,
      emit: (effect) => this.#act(effect),
      onPolicyFailed: (error) => {
        throw error;
      },
      onProgress: () => {},
      onSwap: (worker, swap) =>
        setImmediate(() => {
          if (options.failing === worker) {
            this.exchange.swapFailed(worker, swap, new Error("no memory left"));
            return;
          }
          this.moves.push(`${swap === "onload" ? "+" : "-"}${worker}`);
          if (swap === "onload") this.exchange.onloaded(worker, { memoryBytes: memory[worker] as number });
          else this.exchange.offloaded(worker);
        }),
    });
    if (Object.keys(memory).length > 0) this.exchange.addDevice("cpu:0", 100);
    for (const worker of Object.keys(memory)) {
      this.exchange.addWorker(worker, ["cpu:0"]);
      this.exchange.reportMemory(worker, this.#memory[worker] as number);
    }
  }

  define({ name, capacity = 1000 }: { readonly name: string; readonly capacity?: number }): void {
    this.exchange.define(name, capacity, "fifo");
  }

  open(call: string, worker: string, ends: readonly ChannelEnd[] = []): void {
    if (worker === "runner") this.exchange.openOwn(call, ends[0] as ChannelEnd);
    else this.exchange.openCall({ call, worker, sequence: ++this.#sequence, ends });
  }

  close(call: string, outcome: CallOutcome = { ok: true }): void {
    this.exchange.closeCall(call, outcome);
  }

  startOver(call: string, worker: string): void {
    this.exchange.startOver([{ call, worker }]);
  }

  startOverTogether(calls: readonly { readonly call: string; readonly worker: string }[]): void {
    this.exchange.startOver(calls);
  }

  workerDied(worker: string): void {
    this.exchange.workerDied(worker);
  }

  tick(nowMs: number): void {
    this.exchange.nowMs = nowMs;
    this.exchange.tick();
  }

  fail(error: TreadleError): void {
    this.exchange.fail(error);
  }

  depth(channel: string): number {
    return this.exchange.depth(channel);
  }

  async put(call: string, channel: string, ...payloads: unknown[]): Promise<void> {
    const items = payloads.map((payload) => ({ payload, sizeBytes: 1 }));
    await this.#ask((request) => this.exchange.put({ type: "put", request, call, channel, items }));
  }

  /** Undefined at the end of the stream. */
  async take(
    call: string,
    channel: string,
    maxItems?: number,
    acknowledge = true,
    terms: WaitTerms = {},
  ): Promise<unknown[] | undefined> {
    const answer = await this.#ask((request) =>
      this.exchange.take({ type: "take", request, call, channel, maxItems, minItems: 1, acknowledge, ...terms }),
    );
    return answer.type === "batch" ? answer.items.map(({ payload }) => payload) : undefined;
  }

  async acquire(call: string, worker: string): Promise<number> {
    const answer = await this.#ask((request) => this.exchange.acquire(request, call, worker));
    return answer.type === "token" ? answer.token : Number.NaN;
  }

  release(call: string, worker: string, token: number): void {
    this.exchange.release(call, worker, token);
  }

  #ask(start: (request: number) => void): Promise<Answer> {
    const request = ++this.#lastRequest;
    return new Promise((resolve, reject) => {
      this.#waiting.set(request, { resolve, reject });
      start(request);
    });
  }

  #act(effect: RunnerEffect): void {
    if (effect.type !== "answer" && effect.type !== "reject") return;
    const waiting = this.#waiting.get(effect.request);
    if (!waiting) throw new Error(`EX4: request ${effect.request} is answered twice`);
    this.#waiting.delete(effect.request);
    if (effect.type === "answer") waiting.resolve(effect.answer);
    else waiting.reject(effect.error);
  }
}
