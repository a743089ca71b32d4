/** Episodes that were sampled: a list that filters and scrolls, and one of them token by token. */
import type { CompletionRecord } from "@treadle/contracts";
import { html, nothing, type TemplateResult } from "lit-html";
import { chooseEpisodes, type EpisodeFilter, type EpisodeLine, type EpisodeOrder } from "../view/episodes.ts";
import { plural, significant } from "../view/format.ts";
import { api } from "./api.ts";
import { empty } from "./parts.ts";
import type { RunStore } from "./run-store.ts";
import { styleOf } from "./style-of.ts";

const rowHeight = 52;
const orders: readonly EpisodeOrder[] = ["newest", "oldest", "best", "worst", "longest", "shortest"];

export class EpisodesTab {
  #filter: EpisodeFilter = {};
  #order: EpisodeOrder = "newest";
  #chosen: { index: number; record?: CompletionRecord; problem?: string } | undefined;
  #top = 0;
  #height = 600;
  #cached: { of: number; filter: EpisodeFilter; order: EpisodeOrder; list: readonly EpisodeLine[] } | undefined;
  readonly #redraw: () => void;

  constructor(redraw: () => void) {
    this.#redraw = redraw;
  }

  #list(store: RunStore): readonly EpisodeLine[] {
    const { episodes } = store;
    const known = this.#cached;
    if (known && known.of === episodes.length && known.filter === this.#filter && known.order === this.#order)
      return known.list;
    const list = chooseEpisodes(episodes, this.#filter, this.#order);
    this.#cached = { of: episodes.length, filter: this.#filter, order: this.#order, list };
    return list;
  }

  #open(store: RunStore, index: number): void {
    this.#chosen = { index };
    const chosen = this.#chosen;
    this.#redraw();
    api.episode(store.runId, index).then(
      (record) => {
        chosen.record = record;
        this.#redraw();
      },
      (error: Error) => {
        chosen.problem = error.message;
        this.#redraw();
      },
    );
  }

  /** j and k, or arrows: the next and the one before. */
  onKey(store: RunStore, { key }: KeyboardEvent): boolean {
    const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[key];
    if (by === undefined) return false;
    const list = this.#list(store);
    const at = list.findIndex(({ index }) => index === this.#chosen?.index);
    const next = Math.max(0, Math.min(list.length - 1, at + by));
    const line = list[next];
    if (line === undefined) return true;
    this.#open(store, line.index);
    const scroller = document.getElementById("episode-list");
    if (
      scroller &&
      (next * rowHeight < scroller.scrollTop || (next + 1) * rowHeight > scroller.scrollTop + scroller.clientHeight)
    )
      scroller.scrollTop = Math.max(0, (next - 2) * rowHeight);
    return true;
  }

  render(store: RunStore): TemplateResult {
    const list = this.#list(store);
    if (store.episodes.length === 0) {
      return store.lacks("episodes")
        ? empty("reading episodes")
        : empty(
            "no episodes were sampled",
            html`rollout workers leave some every few steps: <code>completions: { everySteps, episodes }</code> of their configuration`,
          );
    }
    const change =
      (name: keyof EpisodeFilter, isText = false) =>
      (event: Event) => {
        const { value } = event.target as HTMLInputElement;
        this.#filter = { ...this.#filter, [name]: isText ? value : value === "" ? undefined : Number(value) };
        this.#redraw();
      };
    const bound = (title: string, name: keyof EpisodeFilter, step: string) =>
      html`<input type="number" step=${step} placeholder=${title} aria-label="${title} of ${name}" @input=${change(name)}>`;
    const first = Math.max(0, Math.floor(this.#top / rowHeight) - 4);
    const shown = list.slice(first, first + Math.ceil(this.#height / rowHeight) + 8);
    const onScroll = (event: Event) => {
      const { scrollTop, clientHeight } = event.target as HTMLElement;
      [this.#top, this.#height] = [scrollTop, clientHeight];
      this.#redraw();
    };
    return html`<div class="toolbar"><label>reward ${bound("least", "leastReward", "any")} ${bound("most", "mostReward", "any")}</label>
        <label>length ${bound("least", "leastLength", "1")} ${bound("most", "mostLength", "1")}</label>
        <input type="search" placeholder="text of prompt or completion" aria-label="text" @input=${change("text", true)}>
        <label>order <select @change=${(event: Event) => {
          this.#order = (event.target as HTMLSelectElement).value as EpisodeOrder;
          this.#redraw();
        }}>${orders.map((order) => html`<option ?selected=${order === this.#order}>${order}</option>`)}</select></label>
        <span class="dim small">${list.length === store.episodes.length ? plural(list.length, "episode") : `${list.length} of ${plural(store.episodes.length, "episode")}`}</span></div>
      <div class="episodes"><div class="card list" id="episode-list" tabindex="0" role="listbox" aria-label="episodes" @scroll=${onScroll}><div data-style=${styleOf({ height: `${list.length * rowHeight}px` })}>
        ${shown.map((line, i) => this.#row(store, line, first + i))}</div></div>
        <div class="card">${this.#detail()}</div></div>`;
  }

  #row(store: RunStore, line: EpisodeLine, at: number): TemplateResult {
    const { index, step, reward, length, prompt, text, numCalls, finishReason } = line;
    return html`<div class="row" role="option" aria-selected=${this.#chosen?.index === index} data-style=${styleOf({ top: `${at * rowHeight}px` })} @click=${() => this.#open(store, index)}>
      <div class="first"><b class="num">${significant(reward)}</b><span class="dim small nowrap">step ${step} · ${plural(length, "token")}${numCalls > 0 ? ` · ${plural(numCalls, "call")}` : ""}${finishReason === "stop" ? "" : ` · ${finishReason}`}</span></div>
      <div class="second mono">${prompt}<b> ${text}</b></div></div>`;
  }

  #detail(): TemplateResult {
    const chosen = this.#chosen;
    if (chosen === undefined) return empty("choose an episode", "keys j and k go through them");
    if (chosen.problem) return empty(chosen.problem);
    const { record } = chosen;
    if (record === undefined) return empty("reading");
    const versions = [...new Set(record.turns.flatMap(({ versions: all }) => all ?? []))];
    return html`<header><h2>reward ${significant(record.reward)}</h2><span class="dim small">step ${record.step}, ${record.worker}, prompt ${record.promptId}, ${plural(record.length, "token")}, ended by ${record.finishReason}${versions.length > 0 ? `, policy v${versions.join(", v")}` : ""}</span></header>
      ${record.answer === undefined ? nothing : html`<div class="notice info">expected: <code>${record.answer}</code></div>`}
      ${record.turns.map(
        (turn) =>
          html`<section class="turn ${turn.by}"><header>${turn.by === "tool" ? "answer of the tool" : turn.by}${turn.versions && versions.length > 1 ? `, v${[...new Set(turn.versions)].join(", v")}` : ""}</header><pre>${
            turn.pieces
              ? turn.pieces.map((piece, i) => token(piece, turn.logprobs?.[i], turn.versions?.[i]))
              : turn.text
          }</pre></section>`,
      )}
      <div class="dim small">the redder a token, the less probable it was; point at one for its log-probability</div>`;
  }
}

function token(piece: string, logprob: number | undefined, version: number | undefined): TemplateResult {
  if (logprob === undefined) return html`<span>${piece}</span>`;
  const doubt = Math.round(Math.min(1, -logprob / 5) * 70);
  const title = `log-probability ${logprob.toFixed(3)}, ${(Math.exp(logprob) * 100).toFixed(1)} %${version === undefined ? "" : `, policy v${version}`}`;
  return html`<span class="token" title=${title} data-style=${styleOf({ background: `color-mix(in srgb, var(--bad) ${doubt}%, transparent)` })}>${piece === "" ? "∅" : piece}</span>`;
}
