/** What a worker has printed, from the end, following it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { formatCount, formatTime } from "../view/format.ts";
import type { LoggedWorker, LogLine } from "../view/wire.ts";
import { api } from "./api.ts";
import { empty } from "./parts.ts";
import type { RunStore } from "./run-store.ts";

const maxLines = 5000;
const pollMs = 1500;

export class LogsTab {
  #workers: readonly LoggedWorker[] | undefined;
  #worker: string | undefined;
  #lines: LogLine[] = [];
  #from = 0;
  #to: number | undefined;
  #least = "";
  #isBusy = false;
  #askedMs = Number.NEGATIVE_INFINITY;
  readonly #redraw: () => void;

  constructor(redraw: () => void) {
    this.#redraw = redraw;
  }

  async #look(store: RunStore): Promise<void> {
    const nowMs = performance.now();
    if (this.#isBusy || nowMs - this.#askedMs < pollMs) return;
    this.#isBusy = true;
    this.#askedMs = nowMs;
    try {
      this.#workers = await api.logged(store.runId);
      this.#worker ??= (this.#workers.find(({ sizeBytes }) => sizeBytes > 0) ?? this.#workers[0])?.worker;
      const worker = this.#worker;
      if (worker === undefined) return;
      const page = await api.log(store.runId, worker, this.#to === undefined ? "" : `&after=${this.#to}`);
      if (worker !== this.#worker) return;
      if (this.#to === undefined) this.#from = page.fromByte;
      this.#to = page.toByte;
      this.#lines = [...this.#lines, ...page.lines].slice(-maxLines);
    } catch {
      // asked again in a moment
    } finally {
      this.#isBusy = false;
      this.#redraw();
      requestAnimationFrame(() => {
        const log = document.getElementById("log");
        if (log && log.scrollHeight - log.scrollTop - log.clientHeight < 200) log.scrollTop = log.scrollHeight;
      });
    }
  }

  #choose(worker: string): void {
    this.#worker = worker;
    this.#lines = [];
    this.#to = undefined;
    this.#askedMs = Number.NEGATIVE_INFINITY;
    this.#redraw();
  }

  async #older(store: RunStore): Promise<void> {
    if (this.#worker === undefined || this.#from === 0) return;
    const page = await api.log(store.runId, this.#worker, `&before=${this.#from}`);
    this.#from = page.fromByte;
    this.#lines = [...page.lines, ...this.#lines].slice(0, maxLines);
    this.#redraw();
  }

  render(store: RunStore): TemplateResult {
    if (store.now?.phase === "running" || this.#to === undefined) void this.#look(store);
    if (this.#workers === undefined) return empty("reading logs");
    if (this.#workers.length === 0)
      return empty("no worker has a log here", "logs stay on the machine that wrote them");
    const levels = ["", "info", "warn", "error"];
    const ranks = ["trace", "debug", "info", "warn", "error", "fatal"];
    const shown = this.#lines.filter(
      ({ level }) => this.#least === "" || (level !== undefined && ranks.indexOf(level) >= ranks.indexOf(this.#least)),
    );
    return html`<div class="toolbar"><label>worker <select @change=${(event: Event) => this.#choose((event.target as HTMLSelectElement).value)}>${this.#workers.map(
      ({ worker, sizeBytes }) =>
        html`<option value=${worker} ?selected=${worker === this.#worker}>${worker}, ${formatCount(sizeBytes)}B</option>`,
    )}</select></label>
      <label>from level <select @change=${(event: Event) => {
        this.#least = (event.target as HTMLSelectElement).value;
        this.#redraw();
      }}>${levels.map((level) => html`<option value=${level}>${level || "all"}</option>`)}</select></label>
      ${this.#from > 0 ? html`<button @click=${() => void this.#older(store)}>older</button>` : nothing}</div>
      <div class="card log" id="log" tabindex="0">${
        shown.length === 0
          ? empty(this.#lines.length === 0 ? "it has printed nothing" : "nothing of that level")
          : shown.map(
              ({ atMs, level, text }) =>
                html`<div class=${level ?? ""}>${atMs === undefined ? nothing : html`<time>${formatTime(atMs)}</time>`}${text}</div>`,
            )
      }</div>`;
  }
}
