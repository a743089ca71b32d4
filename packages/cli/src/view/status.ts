/** What `treadle status` prints. */
import { componentOf, type RunRecord } from "@treadle/contracts";
import { type ClusterStatus, deviceRange, type RunNow } from "@treadle/dashboard/view";
import { gibibytes, printable } from "./text.ts";

const maxEnded = 5;

export function renderStatus({ nodes, runs, ended }: ClusterStatus): string {
  const trusted = ended.filter(({ isUntrusted }) => !isUntrusted);
  const isGone = ({ state }: RunRecord): boolean => state === "running"; // a runner that was killed wrote nothing more
  const shown = [...trusted.filter(isGone), ...trusted.filter((each) => !isGone(each)).slice(-maxEnded)];
  const untrusted = ended.filter(({ isUntrusted }) => isUntrusted);
  return [
    ...section("nodes", nodes.map(nodeLine), "none; start one with 'treadle node'"),
    ...section("runs", runs.flatMap(runLines), "none under way"),
    ...(shown.length === 0 ? [] : section("ended", shown.map(endedLine), "")),
    // Apart: however many there are, they hide none that is signed.
    ...(untrusted.length === 0
      ? []
      : section("ended, unsigned: anybody at the server may say so", untrusted.slice(-maxEnded).map(endedLine), "")),
    "",
  ].join("\n");
}

/** Of the folders below `root`; of no more than one that has ended, what there is to do about it. */
export function renderLocalStatus(root: string, runs: readonly RunNow[]): string {
  const lines = runs.flatMap((run) => (run.phase === "running" ? localLines(run) : [endedLocally(run)]));
  return [...section(`runs in '${root}'`, lines, "none; start one with 'treadle run'"), ""].join("\n");
}

function localLines({ runId, state, damages }: RunNow): string[] {
  const { mode, step, numSteps, restarts, phase, workers, placement, queues, waits } = state;
  const doing = phase === undefined ? "" : `, ${phase.name}`;
  const ranks = placement.map(({ component, devices }) => {
    const own = Object.entries(workers).filter(([worker]) => componentOf(worker) === component);
    const dead = own.filter(([, { status }]) => status === "dead").map(([worker]) => `, ${worker} is dead`);
    return `  ${component.padEnd(16)} ${own.length} workers on ${deviceRange(devices)}${dead.join("")}`;
  });
  return [
    `${runId}: step ${step} of ${numSteps}${doing}, ${mode}, ${restarts} restarts`,
    ...ranks,
    ...Object.entries(queues)
      .filter(([, { depth }]) => depth > 0)
      .map(([channel, { depth }]) => `  channel ${channel}: ${depth} items`),
    ...Object.entries(waits).map(([who, { on }]) => `  ${who} waits for ${on}`),
    ...damages.map((damage) => `  ${damage}`),
  ];
}

function endedLocally({ runId, phase, remedy, state }: RunNow): string {
  return `none under way; the newest, ${runId}, ${phase} at step ${state.step}${remedy === undefined ? "" : `: ${remedy}`}`;
}

const section = (title: string, lines: readonly string[], otherwise: string): string[] => [
  title,
  // Much of it comes from afar.
  ...(lines.length === 0 ? [otherwise] : lines).map((line) => `  ${printable(line)}`),
];

function nodeLine({ name, incarnation, info, isUntrusted }: ClusterStatus["nodes"][number]): string {
  const kinds = new Map<string, number>();
  for (const { kind, name: model, memoryBytes } of info.devices) {
    const what = model === undefined ? kind : `${kind} (${model}, ${gibibytes(memoryBytes)})`;
    kinds.set(what, (kinds.get(what) ?? 0) + 1);
  }
  const devices = [...kinds].map(([what, count]) => `${count} ${what}`);
  const numa = (info.numa?.length ?? 0) > 1 ? ` on ${info.numa?.length} NUMA nodes` : "";
  const labels = Object.entries(info.labels).map(([key, value]) => `${key}=${value}`);
  const parts = [`${info.cpus} cores${numa}`, gibibytes(info.memoryBytes), ...devices, ...labels];
  if (info.isDraining) parts.push("drains");
  if (isUntrusted) parts.push("not used: no trusted key has announced it");
  return `${name.padEnd(16)} ${parts.join(", ")}; ${workersOf(info)} (incarnation ${incarnation})`;
}

function workersOf({ workers, exclusiveTo }: ClusterStatus["nodes"][number]["info"]): string {
  const runs = Object.entries(workers).filter(([, list]) => list.length > 0);
  const all = `${runs.flatMap(([, list]) => list).length} workers`;
  if (exclusiveTo !== undefined) return `${all}, for run '${exclusiveTo}' alone`;
  if (runs.length < 2) return all;
  const each = runs.map(([run, list]) => `${list.length} of '${run}'`).join(", ");
  return `${all} of ${runs.length} runs that share its cores: ${each}`;
}

function runLines({ runId, info, status, problem }: ClusterStatus["runs"][number]): string[] {
  const where = info === undefined ? "" : ` on ${info.host}`;
  if (status === undefined) return [`${runId}${where}: ${problem ?? "does not answer"}`];
  const step = status.step === undefined ? "before the first step" : `step ${status.step}`;
  const workers = status.workers.map(({ worker, node, devices, isReady, route }) => {
    const how = `${isReady ? "" : "  starting"}${route === "nats" ? "  by way of NATS" : ""}`;
    return `  ${worker.padEnd(16)} ${node.padEnd(12)} ${devices.join(" ")}${how}`;
  });
  const queues = status.channels
    .filter(({ depth }) => depth > 0)
    .map(({ channel, depth }) => `  channel ${channel}: ${depth} items`);
  const waits = status.waits.map(({ who, on }) => `  ${who} waits for ${on}`);
  return [`${runId}${where}: ${step}, ${status.restarts} restarts`, ...workers, ...queues, ...waits];
}

function endedLine({ runId, state, step, failure }: RunRecord): string {
  const how = state === "running" ? "its runner is gone" : state;
  return `${runId}: ${how}, step ${step}${failure === undefined ? "" : `: ${failure.split("\n")[0]}`}`;
}
