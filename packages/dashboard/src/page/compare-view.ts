/** Several runs: their curves over one another, their figures side by side, and what their configurations differ in. */
import { html, nothing } from "lit-html";
import { differences, overlay } from "../view/comparison.ts";
import { formatPercent, formatSeconds, significant } from "../view/format.ts";
import type { Metric, RunFacts, RunNow } from "../view/wire.ts";
import { api } from "./api.ts";
import { badge, chartCard, chip, empty } from "./parts.ts";
import type { View, ViewPorts } from "./view-ports.ts";

const refreshMs = 3000;
const maxRuns = 8;
const notCurves = new Set(["step", "policyVersion"]);

type Compared = { readonly runId: string; now?: RunNow; facts?: RunFacts; metrics: Metric[]; problem?: string };

export function compareView({ redraw, onConnection }: ViewPorts, ids: readonly string[]): View {
  const runs: Compared[] = [...new Set(ids)].slice(0, maxRuns).map((runId) => ({ runId, metrics: [] }));
  let showsAll = false;
  let isClosed = false;
  const read = async (run: Compared): Promise<void> => {
    try {
      run.now = await api.now(run.runId);
      run.facts ??= await api.facts(run.runId);
      run.metrics.push(...(await api.metrics(run.runId, run.metrics.length)));
      onConnection("live");
    } catch (error) {
      if (run.now === undefined) run.problem = (error as Error).message;
      else onConnection("lost");
    }
    if (!isClosed) redraw();
  };
  const readAll = () => runs.filter(({ now }) => now === undefined || now.phase === "running").map(read);
  readAll();
  const timer = setInterval(readAll, refreshMs);
  return {
    title: `${runs.length} runs compared`,
    close() {
      isClosed = true;
      clearInterval(timer);
    },
    render() {
      const known = runs.filter(({ now }) => now !== undefined);
      const problems = runs.flatMap(({ runId, problem }) => (problem ? [`${runId}: ${problem}`] : []));
      if (known.length === 0) return problems.length > 0 ? empty(...problems) : empty("reading runs");
      const names = [...new Set(known.flatMap(({ metrics }) => metrics.flatMap((row) => Object.keys(row))))].filter(
        (name) => !notCurves.has(name),
      );
      const first = ["reward", "accuracy", "seconds"].filter((name) => names.includes(name));
      const rest = names.filter((name) => !first.includes(name));
      const card = (name: string, small: boolean) => {
        const { xs, values } = overlay(
          known.map(({ metrics }) => metrics),
          name,
        );
        const series = known.map(({ runId }, i) => ({
          name: shortName(runId),
          colour: `--c${i % 8}`,
          values: values[i] ?? [],
        }));
        return chartCard(
          name,
          { xs, xName: "step", series, percent: name === "accuracy", unit: name === "seconds" ? "s" : undefined },
          { small, size: small ? "third" : "half" },
        );
      };
      const differing = differences(known.map(({ facts }) => facts?.config));
      return html`${problems.map((problem) => html`<div class="notice bad">${problem}</div>`)}
        <div class="card scroll-x"><table><thead><tr><th>run</th><th>state</th><th class="right">step</th><th class="right">reward</th><th class="right">accuracy</th><th class="right">a step</th><th class="right">all steps</th></tr></thead><tbody>
        ${known.map(({ runId, now, metrics }, i) => {
          const last = (name: string) => metrics.findLast((row) => Number.isFinite(row[name]))?.[name];
          const seconds = metrics.flatMap((row) => (Number.isFinite(row["seconds"]) ? [row["seconds"] as number] : []));
          const sorted = seconds.toSorted((a, b) => a - b);
          return html`<tr><td><span class="named">${chip(i)}<a href="#/run/${encodeURIComponent(runId)}">${runId}</a></span></td><td>${now ? badge(now.phase) : nothing}</td><td class="right num">${now?.state.step}</td><td class="right num">${show(last("reward"), significant)}</td><td class="right num">${show(last("accuracy"), (value) => formatPercent(value))}</td><td class="right num">${show(sorted[sorted.length >> 1], formatSeconds)}</td><td class="right num">${show(seconds.length ? seconds.reduce((sum, value) => sum + value, 0) : undefined, formatSeconds)}</td></tr>`;
        })}</tbody></table></div>
        <div class="grid">${first.map((name) => card(name, false))}
        <section class="card"><header><h2>Configurations</h2><span class="dim small">${differing.length === 0 ? "are the same" : `differ in ${differing.length} keys`}</span></header>
          ${differing.length === 0 ? nothing : html`<div class="scroll-x"><table><thead><tr><th>key</th>${known.map(({ runId }, i) => html`<th><span class="named">${chip(i)}${shortName(runId)}</span></th>`)}</tr></thead><tbody>${differing.slice(0, 300).map(({ path, values }) => html`<tr><td class="mono">${path}</td>${values.map((value) => html`<td class="mono">${value ?? html`<span class="dim">–</span>`}</td>`)}</tr>`)}</tbody></table></div>`}</section>
        ${
          rest.length === 0
            ? nothing
            : html`<section class="card"><header><h2>Other metrics</h2><span class="grow"></span><button @click=${() => {
                showsAll = !showsAll;
                redraw();
              }}>${showsAll ? "hide" : "show"}</button></header></section>${showsAll ? rest.slice(0, 60).map((name) => card(name, true)) : nothing}`
        }</div>`;
    },
  };
}

const show = (value: number | undefined, text: (value: number) => string): string =>
  value === undefined ? "–" : text(value);

/** `20260131-142530-reasoning-grpo-4f2a91c7` → `4f2a91c7, 14:25` */
function shortName(runId: string): string {
  const [, hour, minute, tag] = /^\d{8}-(\d\d)(\d\d)\d\d-.*-([^-]+)$/.exec(runId) ?? [];
  return tag === undefined ? runId.slice(-24) : `${tag}, ${hour}:${minute}`;
}
