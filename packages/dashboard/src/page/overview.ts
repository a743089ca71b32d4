/** The first ten seconds: does it go on, does it learn, what does a step take, what is waited for, what went wrong. */
import { html, nothing, type TemplateResult } from "lit-html";
import {
  formatClock,
  formatCount,
  formatPercent,
  formatSeconds,
  formatTime,
  plural,
  significant,
} from "../view/format.ts";
import { type IdleReport, whyIdle } from "../view/idle.ts";
import { medianStep } from "../view/measured.ts";
import { recentTokensPerSecond, secondsLeft } from "../view/state.ts";
import type { Metric } from "../view/wire.ts";
import type { ChartSpec } from "./chart.ts";
import { ago, chartCard, empty, named, tile } from "./parts.ts";
import type { RunStore } from "./run-store.ts";
import { styleOf } from "./style-of.ts";

/** drawn in places of their own, or numbers that only grow */
const notCurves = new Set(["step", "seconds", "reward", "accuracy", "policyVersion"]);
const maxFaultsShown = 200;

export class Overview {
  #idle: { at: number; rows: number; report: IdleReport } | undefined;
  #showsAll = false;

  render(store: RunStore, redraw: () => void): TemplateResult {
    const { now, metrics } = store;
    if (now === undefined) return empty("reading the run");
    const { state } = now;
    const step = state.step > 0;
    return html`${this.#tiles(store)}
      <div class="grid">
        ${step || metrics.length > 0 ? learning(metrics) : html`<section class="card">${empty("no step has ended yet", state.phase ? state.phase.name : "curves begin with the first step")}</section>`}
        ${this.#time(store)} ${this.#idleCard(store)} ${queues(store)} ${faults(store)} ${this.#others(store, redraw)}
      </div>`;
  }

  #tiles({ now, metrics }: RunStore): TemplateResult {
    const { state, phase } = now as NonNullable<RunStore["now"]>;
    const series = (name: string) =>
      metrics.flatMap((row) => (Number.isFinite(row[name]) ? [row[name] as number] : []));
    const [rewards, accuracies, stepSeconds] = [series("reward"), series("accuracy"), medianStep(metrics)];
    const from = (values: readonly number[], text: (value: number) => string) =>
      values.length > 1 ? `from ${text(values[0] as number)}` : "";
    const rate = recentTokensPerSecond(state);
    const left = phase === "running" ? secondsLeft(state) : undefined;
    const workers = Object.values(state.workers);
    const down = workers.filter(({ status }) => status === "dead").length;
    const elapsed =
      state.startedAtMs === undefined
        ? undefined
        : ((phase === "running" ? Date.now() : (state.lastEventAtMs ?? Date.now())) - state.startedAtMs) / 1000;
    return html`<div class="tiles">
      ${tile("step", html`${state.step}<span class="dim small"> / ${state.numSteps || "?"}</span>`, left === undefined ? (elapsed === undefined ? "" : `${formatClock(elapsed)} in all`) : `${formatClock(left)} left`)}
      ${tile("reward", rewards.length ? significant(rewards.at(-1) as number) : "–", from(rewards, significant))}
      ${tile(
        "accuracy",
        accuracies.length ? formatPercent(accuracies.at(-1) as number) : "–",
        from(accuracies, (value) => formatPercent(value)),
      )}
      ${tile("a step takes", stepSeconds === undefined ? "–" : formatSeconds(stepSeconds), stepSeconds === undefined ? "" : "median of the last 20")}
      ${tile("tokens/s", rate === undefined ? "–" : formatCount(rate), "over the last steps")}
      ${tile("policy", state.policyVersion > 0 ? `v${state.policyVersion}` : "–", state.checkpoint ? `checkpoint at step ${state.checkpoint.step}` : "")}
      ${tile("workers", workers.length ? String(workers.length - down) : "–", down > 0 ? `${down} down` : state.restarts > 0 ? plural(state.restarts, "restart") : "none restarted")}
    </div>`;
  }

  /** Over the last steps while a run goes on, else over all of it. */
  #report(store: RunStore): IdleReport | undefined {
    const { spans, now } = store;
    if (spans.length === 0) return undefined;
    const stale =
      this.#idle === undefined || (this.#idle.rows !== spans.length && performance.now() - this.#idle.at > 2000);
    if (stale) {
      let last = 0;
      for (let row = Math.max(0, spans.length - 5000); row < spans.length; row++)
        last = Math.max(last, (spans.start[row] as number) + (spans.duration[row] as number));
      const fromMs = now?.phase === "running" ? Math.max(0, last - 60_000) : 0;
      this.#idle = { at: performance.now(), rows: spans.length, report: whyIdle(spans, { fromMs, toMs: last }) };
    }
    return this.#idle?.report;
  }

  #time(store: RunStore): TemplateResult {
    const report = this.#report(store);
    const window = store.now?.phase === "running" ? "the last minute" : "the whole run";
    return html`<section class="card half"><header><h2>What each component does</h2><span class="dim small">${window}</span></header>
      ${
        report === undefined
          ? empty(
              store.lacks("spans") ? "reading the trace" : "no spans yet",
              html`they are recorded while <code>trace: true</code>`,
            )
          : html`${report.components.map((each) => {
              const parts = activities.map(
                ({ key, colour, name }) =>
                  html`<i title="${name} ${formatPercent(each[key])}" data-style=${styleOf({ width: `${(each[key] * 100).toFixed(2)}%`, background: `var(${colour})` })}></i>`,
              );
              return html`<div class="share"><b>${named(each.component, store.slots)}</b><div class="bar">${parts}</div><span class="num right">${formatPercent(each.compute, 0)}</span></div>`;
            })}
            <div class="legend">${activities.map(({ name, colour }) => html`<span><i class="chip" data-style=${styleOf({ background: `var(${colour})` })}></i>${name}</span>`)}</div>`
      }</section>`;
  }

  #idleCard(store: RunStore): TemplateResult {
    const report = this.#report(store);
    const causes = report?.causes.slice(0, 8) ?? [];
    const waits = Object.entries(store.now?.state.waits ?? {}).sort(([, a], [, b]) => a.sinceMs - b.sinceMs);
    return html`<section class="card half"><header><h2>Why idle</h2><span class="dim small">worst first, seconds of an average rank</span></header>
      ${waits.slice(0, 3).map(([who, { on, sinceMs }]) => html`<div class="notice">now: <b>${who}</b> waits for ${on}, ${ago(sinceMs).replace(" ago", "")}</div>`)}
      ${
        causes.length === 0
          ? empty("nothing is known yet")
          : html`<table><tbody>${causes.map(
              ({ component, cause, seconds, share }) =>
                html`<tr><td class="nowrap">${named(component, store.slots)}</td><td>${cause}</td><td class="right num nowrap">${formatSeconds(seconds)}</td><td class="right num nowrap"><b>${formatPercent(share, 0)}</b></td></tr>`,
            )}</tbody></table>`
      }</section>`;
  }

  #others(store: RunStore, redraw: () => void): unknown {
    const names = [...new Set(store.metrics.flatMap((row) => Object.keys(row)))].filter((name) => !notCurves.has(name));
    if (names.length === 0) return nothing;
    const toggle = () => {
      this.#showsAll = !this.#showsAll;
      redraw();
    };
    return html`<section class="card"><header><h2>Other metrics</h2><span class="dim small">${names.length}: ${names.slice(0, 8).join(", ")}${names.length > 8 ? ", …" : ""}</span><span class="grow"></span><button @click=${toggle} aria-expanded=${this.#showsAll}>${this.#showsAll ? "hide" : "show"}</button></header></section>
      ${this.#showsAll ? names.slice(0, 60).map((name) => curveCard(store.metrics, name, { title: name, colour: "--c7", size: "third", small: true })) : nothing}`;
  }
}

const activities = [
  { key: "compute", name: "computes", colour: "--compute" },
  { key: "transfer", name: "moves data", colour: "--transfer" },
  { key: "lockWait", name: "waits for a device", colour: "--lock-wait" },
  { key: "channelWait", name: "waits for data", colour: "--channel-wait" },
  { key: "idle", name: "idle", colour: "--idle" },
] as const;

function curveCard(
  metrics: readonly Metric[],
  name: string,
  {
    title,
    colour,
    percent = false,
    unit,
    size = "half",
    small = false,
    fromZero = false,
  }: {
    title: string;
    colour: string;
    percent?: boolean;
    unit?: string;
    size?: string;
    small?: boolean;
    fromZero?: boolean;
  },
): TemplateResult {
  const rows = metrics.filter((row) => row[name] !== undefined);
  const values = rows.map((row) => (Number.isFinite(row[name]) ? (row[name] as number) : null));
  const bad = values.filter((value) => value === null).length;
  const spec: ChartSpec = {
    xs: rows.map(({ step }) => step),
    xName: "step",
    series: [{ name: title, colour, values }],
    percent,
    unit,
    fromZero,
  };
  return chartCard(title, spec, { size, small, note: bad > 0 ? `${plural(bad, "value")} not finite` : "" });
}

function learning(metrics: readonly Metric[]): TemplateResult {
  const has = (name: string) => metrics.some((row) => row[name] !== undefined);
  return html`${has("reward") ? curveCard(metrics, "reward", { title: "reward", colour: "--c2" }) : nothing}
    ${has("accuracy") ? curveCard(metrics, "accuracy", { title: "accuracy", colour: "--c0", percent: true }) : nothing}
    ${has("seconds") ? curveCard(metrics, "seconds", { title: "seconds of a step", colour: "--c1", unit: "s", fromZero: true, size: has("reward") === has("accuracy") ? "" : "half", small: has("reward") === has("accuracy") }) : nothing}`;
}

function queues({ now }: RunStore): unknown {
  const list = Object.entries(now?.state.queues ?? {});
  if (list.length === 0) return nothing;
  return html`<section class="card half"><header><h2>Queues</h2><span class="dim small">items that wait, and the most there were</span></header><table><tbody>${list.map(
    ([channel, { depth, capacity, peak }]) => {
      const limit = capacity ?? Math.max(1, peak);
      const full = capacity !== undefined && depth >= capacity;
      return html`<tr><td>${channel}</td><td><div class="bar"><i data-style=${styleOf({ width: `${Math.min(100, (100 * depth) / limit)}%`, background: full ? "var(--warn)" : "var(--accent)" })}></i></div></td><td class="right num nowrap">${formatCount(depth)}${capacity === undefined ? "" : ` / ${formatCount(capacity)}`}</td><td class="right num dim nowrap">peak ${formatCount(peak)}</td></tr>`;
    },
  )}</tbody></table></section>`;
}

function faults({ faults: all, versions }: RunStore): TemplateResult {
  const shown = all.slice(-maxFaultsShown).reverse();
  return html`<section class="card half"><header><h2>Faults and warnings</h2><span class="dim small">${versions && versions.faults > 0 ? `${versions.faults}, newest first` : ""}</span></header>
    ${
      shown.length === 0
        ? empty("none")
        : html`<ul class="faults">${shown.map(({ atMs, level, kind, who, text }) => html`<li><i class="mark ${level}" title=${kind}></i><span class="dim num nowrap small">${formatTime(atMs)}</span><span class="what"><b>${who}</b> ${kind === "warning" || kind === "error" ? "" : kind} ${text}</span></li>`)}</ul>`
    }</section>`;
}
