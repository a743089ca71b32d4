/** One run: what it is at the top, and a tab for each question. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "./api.ts";
import { EpisodesTab } from "./episodes-tab.ts";
import { LogsTab } from "./logs-tab.ts";
import { Overview } from "./overview.ts";
import { badge, empty } from "./parts.ts";
import { planTab } from "./plan-tab.ts";
import { type Part, RunStore } from "./run-store.ts";
import { styleOf } from "./style-of.ts";
import type { View, ViewPorts } from "./view-ports.ts";

type Tab = {
  readonly name: string;
  readonly title: string;
  readonly wants: readonly Part[];
  render(store: RunStore): TemplateResult;
  onKey?(event: KeyboardEvent): boolean;
};

export function runView({ redraw, onConnection }: ViewPorts, runId: string): View & { show(tab: string): void } {
  const store = new RunStore(runId, redraw, onConnection);
  const overview = new Overview();
  const episodes = new EpisodesTab(redraw);
  const logs = new LogsTab(redraw);
  const tabs: readonly Tab[] = [
    {
      name: "",
      title: "overview",
      wants: ["facts", "metrics", "faults", "spans"],
      render: () => overview.render(store, redraw),
    },
    { name: "timeline", title: "timeline", wants: ["spans", "faults", "facts"], render: () => timeline(store) },
    {
      name: "episodes",
      title: "episodes",
      wants: ["episodes"],
      render: () => episodes.render(store),
      onKey: (event) => episodes.onKey(store, event),
    },
    { name: "plan", title: "plan", wants: ["facts", "spans", "metrics"], render: () => planTab(store) },
    { name: "logs", title: "logs", wants: [], render: () => logs.render(store) },
    { name: "configuration", title: "configuration", wants: ["facts"], render: () => configuration(store) },
  ];
  let current = tabs[0] as Tab;
  // Clocks go on when nothing happens.
  const ticks = setInterval(redraw, 1000);
  const href = (tab: string) => `#/run/${encodeURIComponent(runId)}${tab ? `/${tab}` : ""}`;
  return {
    title: runId,
    show(name) {
      current = tabs.find((tab) => tab.name === name) ?? (tabs[0] as Tab);
      for (const part of current.wants) store.want(part);
    },
    onKey(event) {
      const tab = tabs[Number(event.key) - 1];
      if (tab === undefined) return current.onKey?.(event) ?? false;
      location.hash = href(tab.name);
      return true;
    },
    close() {
      clearInterval(ticks);
      store.close();
    },
    render() {
      const { now, problem } = store;
      if (now === undefined)
        return problem ? empty(problem, html`<a href="#/"><u>all runs</u></a>`) : empty("reading the run");
      const { state, phase, remedy, damages } = now;
      const share = state.numSteps > 0 ? Math.min(1, state.step / state.numSteps) : 0;
      return html`<div class="toolbar"><b>${state.workflow || "run"}</b>${badge(phase)}<span class="pill">${state.mode || "no mode yet"}</span>
          ${phase === "running" && state.phase ? html`<span class="dim">${state.phase.name}${state.phase.total ? ` ${state.phase.done ?? 0}/${state.phase.total}` : ""}</span>` : nothing}</div>
        <div class="progress ${phase}" role="progressbar" aria-valuenow=${Math.round(share * 100)} aria-label="steps done"><i data-style=${styleOf({ width: `${share * 100}%` })}></i></div>
        ${state.failure && phase === "failed" ? html`<div class="notice bad"><b>${state.failure.code}</b> ${state.failure.message}</div>` : nothing}
        ${remedy ? html`<div class="notice">${remedy}</div>` : nothing}
        ${damages.length > 0 ? html`<div class="notice">${damages.join("; ")}</div>` : nothing}
        ${
          tabs.length > 1
            ? html`<nav class="tabs">${tabs.map(({ name, title }, i) => html`<a href=${href(name)} aria-current=${current.name === name ? "page" : "false"} title="key ${i + 1}">${title}</a>`)}</nav>`
            : nothing
        }
        ${current.render(store)}`;
    },
  };
}

function timeline(store: RunStore): TemplateResult {
  if (store.spans.length === 0) {
    return store.lacks("spans")
      ? empty("reading the trace")
      : empty("no spans yet", html`they are recorded while <code>trace: true</code>, and come once a second`);
  }
  const input = {
    table: store.spans,
    faults: store.faults,
    slots: store.slots,
    isRunning: store.now?.phase === "running",
    attributesOf: (row: number) => api.span(store.runId, row),
  };
  return html`<div class="card"><t-lanes class="lanes" .input=${input}></t-lanes><div class="dim small">wheel zooms, drag moves, double click shows everything; keys w s zoom, a d move, 0 everything; marks at the top are faults</div></div>`;
}

function configuration(store: RunStore): TemplateResult {
  const { facts } = store;
  if (facts === undefined) return empty("reading");
  if (facts.config === undefined) return empty("the run has no configuration here");
  return html`<div class="card"><header><h2>Resolved configuration</h2><span class="dim small mono">${facts.folder}</span></header><pre class="block">${JSON.stringify(facts.config, null, 2)}</pre></div>`;
}
