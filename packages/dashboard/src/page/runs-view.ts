/** The list of runs: which go on, how far they are, what they have learnt. */
import { html, nothing, type TemplateResult } from "lit-html";
import { formatPercent, plural, significant } from "../view/format.ts";
import type { RunRow } from "../view/wire.ts";
import { follow } from "./api.ts";
import { ago, badge, empty, sparkline } from "./parts.ts";
import type { View, ViewPorts } from "./view-ports.ts";

export function runsView({ redraw, onConnection }: ViewPorts): View {
  let runs: readonly RunRow[] | undefined;
  const chosen = new Set<string>();
  const close = follow(
    "/api/runs/live",
    (_, data) => {
      runs = data as readonly RunRow[];
      redraw();
    },
    onConnection,
    ["runs"],
  );
  const choose = (runId: string) => {
    if (!chosen.delete(runId)) chosen.add(runId);
    redraw();
  };
  return {
    title: "runs",
    close,
    render() {
      if (runs === undefined) return empty("looking for runs");
      if (runs.length === 0)
        return empty(
          "no runs yet",
          html`start one with <code>treadle run &lt;workflow&gt;</code>, and it appears here`,
        );
      const running = runs.filter(({ phase }) => phase === "running").length;
      return html`<div class="toolbar"><h2>${plural(runs.length, "run")}${running > 0 ? `, ${running} under way` : ""}</h2><span class="grow"></span>
        ${chosen.size > 0 ? html`<span class="dim small">${chosen.size} chosen</span>` : nothing}
        <button ?disabled=${chosen.size < 2} title="choose two or more runs" @click=${() => {
          location.hash = `#/compare/${[...chosen].map(encodeURIComponent).join(",")}`;
        }}>compare</button></div>
        <div class="card scroll-x"><table><thead><tr><th></th><th>run</th><th>state</th><th class="right">step</th><th>reward</th><th class="right">last</th><th class="right">accuracy</th><th class="hide-narrow">mode</th><th class="right hide-narrow">changed</th></tr></thead>
        <tbody>${runs.map((run) => line(run, chosen.has(run.runId), choose))}</tbody></table></div>`;
    },
  };
}

function line(run: RunRow, isChosen: boolean, choose: (runId: string) => void): TemplateResult {
  const { runId, workflow, mode, phase, step, numSteps, reward, accuracy, curve, changedAtMs } = run;
  const href = `#/run/${encodeURIComponent(runId)}`;
  const open = (event: Event) => {
    if (!(event.target as Element).closest("input, a")) location.hash = href;
  };
  return html`<tr class="link" @click=${open}>
    <td><input type="checkbox" aria-label="compare ${runId}" .checked=${isChosen} @change=${() => choose(runId)}></td>
    <td><a href=${href}><b>${workflow || "run"}</b><div class="dim small">${runId}</div></a></td>
    <td>${badge(phase)}</td>
    <td class="right num nowrap">${step}<span class="dim">${numSteps > 0 ? ` / ${numSteps}` : ""}</span></td>
    <td>${sparkline(curve)}</td>
    <td class="right num">${reward === undefined ? "–" : significant(reward)}</td>
    <td class="right num">${accuracy === undefined ? "–" : formatPercent(accuracy)}</td>
    <td class="hide-narrow dim">${mode}</td>
    <td class="right nowrap dim hide-narrow">${ago(changedAtMs)}</td></tr>`;
}
