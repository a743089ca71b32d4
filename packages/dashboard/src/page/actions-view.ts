/** What an action service does: its resources over time, completion times by kind, whose actions wait, the last decisions. */
import { html } from "lit-html";
import { formatClock, formatCount, formatPercent, formatSeconds, plural } from "../view/format.ts";
import type { ActionStatus } from "../view/wire.ts";
import { api } from "./api.ts";
import { chartCard, empty, table, tile } from "./parts.ts";
import { poll } from "./polled.ts";
import type { View, ViewPorts } from "./view-ports.ts";

const maxStarted = 40;

export function actionsView(ports: ViewPorts): View {
  const polled = poll(api.actions, ports);
  return {
    title: "actions",
    close: polled.close,
    render() {
      const { found, problem } = polled;
      if (found !== undefined) return page(found);
      if (problem === undefined) return empty("asking the action service");
      return empty(
        problem,
        html`begin the dashboard with <code>--actions host:50061</code> to see what <code>treadle actions serve</code> does there`,
      );
    },
  };
}

const page = (
  status: ActionStatus,
) => html`<div class="toolbar"><h2>Actions</h2><span class="pill">${status.policy}</span>
    <span class="dim small">up ${formatClock(status.uptimeSeconds)}, ${status.isolation}</span></div>
  ${status.draining ? html`<div class="notice">it ends soon, and takes nothing new</div>` : ""}
  <div class="tiles">
    ${tile("running", formatCount(status.running), plural(Object.keys(status.resources).length, "resource"))}
    ${tile("waiting", formatCount(status.waiting), "for their resources")}
    ${tile("open", formatCount(status.trajectories), "trajectories")}
  </div>
  <div class="grid">${Object.entries(status.resources).map(resource)} ${hosts(status)} ${kinds(status)} ${tenants(status)} ${decisions(status)}</div>`;

/** A number stays with its unit, and what has more words takes the lines. */
const unbroken = (text: string) => html`<span class="nowrap">${text}</span>`;

/** A second each, as the service has them. */
function resource([name, { units, held, timeline }]: [string, ActionStatus["resources"][string]]) {
  const xs = timeline.map((_, at) => at - timeline.length + 1);
  const note = `${formatCount(held)} of ${formatCount(units)} held${units > 0 ? `, ${formatPercent(held / units, 0)}` : ""}`;
  const series = [
    { name: "held", colour: "--c0", values: timeline },
    { name: "all", colour: "--dim", values: timeline.map(() => units), dash: true },
  ];
  return chartCard(name, { xs, xName: "second", series, fromZero: true }, { size: "half", small: true, note });
}

function hosts({ hosts: all }: ActionStatus) {
  const gibibytes = (bytes: number) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  const rows = Object.entries(all).map(([name, { cores, held, memoryBytes, reservedBytes, away }]) =>
    away === ""
      ? [name, `${held} of ${cores}`, `${gibibytes(reservedBytes)} of ${gibibytes(memoryBytes)}`, "there"]
      : [name, "–", "–", html`<b>away</b>: ${away}`],
  );
  return rows.length === 0
    ? ""
    : html`<section class="card"><header><h2>Hosts</h2></header>${table(["host", "cores held", "memory reserved", "state"], rows)}</section>`;
}

/** By share of all completion time, the largest first. */
function kinds({ kinds: all }: ActionStatus) {
  const rows = Object.entries(all)
    .toSorted(([, a], [, b]) => b.actSeconds * b.completed - a.actSeconds * a.completed)
    .map(([kind, of]) => {
      const seconds = [
        of.actSeconds,
        of.queueingSeconds,
        of.executionSeconds,
        of.overheadSeconds,
        of.longestActSeconds,
      ];
      return [
        html`<b class="words">${kind}</b>`,
        ...[of.completed, of.failed, of.cancelled].map(formatCount),
        ...seconds.map((each) => unbroken(of.completed > 0 ? formatSeconds(each) : "–")),
        unbroken(curve(of.curve)),
        unbroken(of.predictionError === null ? "–" : formatPercent(of.predictionError, 0)),
      ];
    });
  const names = [
    "kind",
    "done",
    "failed",
    "cancelled",
    "completion",
    "queueing",
    "execution",
    "overhead",
    "longest",
    "E(m)",
    "off by",
  ];
  return html`<section class="card"><header><h2>Kinds</h2><span class="dim small">means of a completed action; most time first</span></header>${
    rows.length === 0 ? empty("no action has been asked for yet") : table(names, rows)
  }</section>`;
}

/** Where it comes from, and E(m) at its last number of units. */
function curve(of: ActionStatus["kinds"][string]["curve"]): string {
  const last = of?.efficiency.at(-1);
  if (of === null) return "–";
  return last === undefined ? of.source : `${of.source}, ${last.efficiency.toFixed(2)} at ${last.units}`;
}

function tenants({ tenants: all }: ActionStatus) {
  const rows = Object.entries(all).map(([name, { running, waiting }]) => [name, running, waiting]);
  return rows.length === 0
    ? ""
    : html`<section class="card third"><header><h2>Tenants</h2></header>${table(["tenant", "running", "waiting"], rows)}</section>`;
}

function decisions({ started, tenants: all }: ActionStatus) {
  const rows = started.slice(0, maxStarted).map((each) => [
    unbroken(`${formatClock(each.secondsAgo)} ago`),
    html`<span class="words">${each.kind}</span>`,
    unbroken(
      Object.entries(each.units)
        .map(([name, units]) => `${formatCount(units)} ${name}`)
        .join(", "),
    ),
    unbroken(formatSeconds(each.waitedSeconds)),
    unbroken(each.expectedSeconds === null ? "–" : formatSeconds(each.expectedSeconds)),
    html`<span class="dim words">${each.why}</span>`,
  ]);
  const names = ["started", "kind", "got", "after", "expected", "why"];
  return html`<section class="card ${Object.keys(all).length > 0 ? "two-thirds" : ""}"><header><h2>Last decisions</h2></header>${
    rows.length === 0 ? empty("none yet") : table(names, rows)
  }</section>`;
}
