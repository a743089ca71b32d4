/** What a worker tells its runner every so often: what keeps it waiting, its spans and its counters. */
import type { Peer } from "@treadle/contracts";
import { recordProcessCounters, type Tracer } from "@treadle/observe";
import type { Endpoint } from "@treadle/transport";
import type { Messenger } from "../author/messages/messenger.ts";

const intervalMs = 1000;

export type TelemetryOptions = {
  readonly runner: Peer;
  readonly tracer: Tracer;
  readonly messages: Messenger;
  readonly endpoint: Endpoint;
  /** those of the process are wanted, too */
  readonly counters: boolean;
};

export class Telemetry {
  readonly #options: TelemetryOptions;
  #toldAwaits = "[]";

  constructor(options: TelemetryOptions) {
    this.#options = options;
  }

  /** Until the runner's link ends. */
  start(): void {
    const timer = setInterval(() => this.send(), intervalMs);
    timer.unref();
    this.#options.runner.link.onClose(() => clearInterval(timer));
  }

  send(): void {
    const { runner, tracer, endpoint, counters } = this.#options;
    this.#sayAwaits();
    if (counters) recordProcessCounters(tracer, endpoint.traffic);
    const spans = tracer.drain();
    if (spans.records.length > 0) runner.notify("telemetry", spans);
  }

  /** S3: what keeps this worker waiting is known to the runner before anybody asks. */
  #sayAwaits(): void {
    const messages = this.#options.messages.awaited(intervalMs);
    const told = JSON.stringify(messages);
    if (told === this.#toldAwaits) return;
    this.#toldAwaits = told;
    this.#options.runner.notify("awaits", { messages });
  }
}
