/**
 * A call that streams, as rollout does: it takes prompts while others are under way, several at a time, and commits each with
 * what was made of it as soon as its engine has completed it. It holds its devices throughout, and lends them by the shipped
 * rule while it waits and its engine computes nothing.
 */
import type { WaitTerms } from "@treadle/contracts";
import { type Answer, LendState } from "@treadle/core";
import type { Request } from "./simulated-worker.ts";

export type StreamingPorts = {
  /** the answer comes to `answered`, with the tag; `lend` and `close` have none */
  readonly ask: (tag: number, request: Request) => void;
  /** for a while, or for as long as said; not any more when the process or its call has ended */
  readonly after: (act: () => void, ms?: number) => void;
  readonly computes: () => void;
  readonly computesNoMore: () => void;
};

const maxInFlight = 3;
/** less than a call that was given items has before its devices are lent */
const fetchMs = 200;
const [lockTag, takeTag, firstCommitTag] = [0, 1, 2];

export class StreamingMaker {
  readonly #ports: StreamingPorts;
  readonly #lending = new LendState();
  #isTaking = false;
  #hasEnded = false;
  #numInFlight = 0;
  #numDecoding = 0;
  #lastTag = firstCommitTag;
  /** lets of going on, of which the last one counts */
  #numLets = 0;
  #isGoingOn = false;

  constructor(ports: StreamingPorts) {
    this.#ports = ports;
    ports.ask(lockTag, { op: "lock" });
  }

  answered(tag: number, answer: Answer): void {
    if (tag === lockTag) this.#take();
    else if (tag === takeTag) this.#taken(answer);
    else this.#committed();
  }

  #taken(answer: Answer): void {
    this.#isTaking = false;
    const items = answer.type === "batch" ? answer.items : [];
    this.#hasEnded = answer.type !== "batch";
    this.#lending.answered(this.#hasEnded ? "room" : "items", true, items.length);
    this.#isGoingOn = false;
    for (const [at, { payload, delivery }] of items.entries()) {
      this.#numInFlight++;
      // Some are fetched first, while others are asked for.
      if ((delivery + at) % 2 === 0) this.#decode(payload as string, delivery);
      else this.#ports.after(() => this.#decode(payload as string, delivery), fetchMs);
    }
    this.#goOn();
  }

  #committed(): void {
    this.#lending.answered("room", true);
    this.#isGoingOn = false;
    this.#numInFlight--;
    this.#goOn();
  }

  #decode(prompt: string, delivery: number): void {
    if (this.#numDecoding++ === 0) this.#ports.computes();
    this.#isGoingOn = false;
    this.#lend();
    this.#ports.after(() => {
      if (--this.#numDecoding === 0) this.#ports.computesNoMore();
      if (this.#lending.committed(1)) this.#isGoingOn = false;
      const terms = this.#terms;
      this.#lending.asked();
      this.#ports.ask(++this.#lastTag, { op: "commit", delivery, items: [prompt], terms });
      this.#lend();
    });
  }

  #take(): void {
    if (this.#isTaking || this.#hasEnded || this.#numInFlight >= maxInFlight) return;
    this.#isTaking = true;
    const terms = this.#terms;
    this.#lending.asked();
    const max = maxInFlight - this.#numInFlight;
    this.#ports.ask(takeTag, { op: "take", channel: "prompts", max, streams: true, terms });
  }

  get #terms(): WaitTerms {
    return this.#lending.terms({ keeps: false, computes: this.#numDecoding > 0 });
  }

  #goOn(): void {
    this.#take();
    if (this.#hasEnded && this.#numInFlight === 0) this.#ports.ask(0, { op: "close", items: [] });
    else this.#lend();
  }

  #lend(): void {
    while (!this.#isGoingOn) {
      const step = this.#lending.next({ keeps: false, computes: this.#numDecoding > 0 });
      if (step.type === "say") this.#ports.ask(0, { op: "lend", numAnswered: step.numAnswered });
      else {
        if (step.type === "let-go-on") this.#letGoOn(step.forMs ?? 0);
        return;
      }
    }
  }

  #letGoOn(forMs: number): void {
    this.#isGoingOn = true;
    const number = ++this.#numLets;
    this.#ports.after(() => {
      if (number !== this.#numLets) return;
      this.#isGoingOn = false;
      this.#lend();
    }, forMs);
  }
}
