/** One frame of the live view: a pure function of the run's state, the time and the terminal's size. */
import type { UtilisationShares } from "@treadle/contracts";
import {
  axisLabels,
  type Curve,
  deviceRange,
  drawnPoints,
  type Notice,
  type RunState,
  recentTokensPerSecond,
  secondsLeft,
} from "@treadle/dashboard/view";
import pc from "picocolors";
import { apportion, bar, dotPlot, sparkline } from "./plot.ts";
import {
  fit,
  formatClock,
  formatCount,
  formatPercent,
  formatSeconds,
  formatTime,
  padCells,
  plural,
  significant,
  singleLine,
} from "./text.ts";

export type Frame = {
  readonly columns: number;
  readonly rows: number;
  readonly nowMs: number;
  readonly colour: boolean;
};

type Colours = ReturnType<typeof pc.createColors>;

/** A part of the frame. When rows run short, parts with the highest `rank` go first. */
type Section = { readonly rank: number; readonly lines: readonly string[] };

/** At most `rows` lines of at most `columns` cells. */
export function renderFrame(state: RunState, frame: Frame): string[] {
  const colours = pc.createColors(frame.colour);
  const columns = Math.max(20, Math.min(frame.columns, 120));
  const sections: Section[] = [
    { rank: 0, lines: [header(state, columns, colours)] },
    { rank: 6, lines: placement(state, columns, colours) },
    { rank: 0, lines: [progress(state, frame.nowMs, columns, colours)] },
    ...curves(state, frame, columns, colours),
    { rank: 2, lines: rates(state, columns, colours) },
    ...shares(state, columns, colours),
    { rank: 5, lines: sample(state, columns, colours) },
    { rank: 4, lines: queues(state, columns, colours) },
    { rank: 1, lines: waits(state, frame.nowMs, columns, colours) },
    { rank: 1, lines: notices(state, columns, colours, 2) },
    { rank: 8, lines: moreNotices(state, columns, colours) },
  ];
  return arrange(sections, frame.rows).map((line) => fit(line, columns));
}

/** Keeps the sections that fit, an empty line between them while there is room for all. */
function arrange(sections: readonly Section[], rows: number): string[] {
  let kept = sections.filter(({ lines }) => lines.length > 0);
  const height = () => kept.reduce((sum, { lines }) => sum + lines.length, 0);
  while (kept.length > 1 && height() > rows) {
    const worst = Math.max(...kept.map(({ rank }) => rank));
    if (worst === 0) break;
    const index = kept.findLastIndex(({ rank }) => rank === worst);
    kept = kept.filter((_, i) => i !== index);
  }
  const gap = height() + kept.length - 1 <= rows;
  return kept.flatMap(({ lines }, index) => (gap && index > 1 ? ["", ...lines] : lines)).slice(0, Math.max(1, rows));
}

function header(state: RunState, columns: number, c: Colours): string {
  const mode = state.mode === "" ? "" : `  ${c.cyan(state.mode)}`;
  const left = `${c.bold(c.magenta("treadle"))}  ${c.bold(state.workflow || "starting")}${mode}`;
  const width = "treadle".length + 2 + (state.workflow || "starting").length + (state.mode ? state.mode.length + 2 : 0);
  const gap = columns - width - state.runId.length;
  return gap < 2 ? left : left + " ".repeat(gap) + c.dim(state.runId);
}

function placement(state: RunState, columns: number, c: Colours): string[] {
  if (state.placement.length === 0) return [];
  const cells = state.placement.map(({ component, devices, granularity }) => {
    const chunk = typeof granularity === "number" ? ` ×${granularity}` : "";
    return `${component} ${c.dim(`${deviceRange(devices)}${chunk}`)}`;
  });
  return [fit(cells.join(c.dim("  ·  ")), columns)];
}

function progress(state: RunState, nowMs: number, columns: number, c: Colours): string {
  const elapsed = state.startedAtMs === undefined ? 0 : Math.max(0, nowMs - state.startedAtMs) / 1000;
  const width = Math.max(8, Math.min(40, columns - 42));
  if (state.phase) {
    const { name, done, total } = state.phase;
    const counted = done !== undefined && total ? `  ${formatCount(done)}/${formatCount(total)}` : "";
    const share = done !== undefined && total ? done / total : 0;
    return `${track(share, width, c, c.cyan)}  ${c.bold(name)}${counted}  ${c.dim(formatClock(Math.floor(elapsed)))}`;
  }
  const share = state.numSteps > 0 ? state.step / state.numSteps : 0;
  const left = secondsLeft(state);
  const end = state.failure
    ? c.red("failed")
    : state.summary
      ? c.green("finished")
      : left === undefined
        ? ""
        : c.dim(`${formatClock(left)} left`);
  const count = `step ${c.bold(String(state.step))}${c.dim(`/${state.numSteps}`)}`;
  return `${track(share, width, c, state.failure ? c.red : c.green)}  ${count}  ${formatClock(Math.floor(elapsed))}  ${end}`;
}

function track(share: number, width: number, c: Colours, paint: (text: string) => string): string {
  const { filled, rest } = bar(share, width);
  return paint(filled) + c.dim("·".repeat(rest));
}

/** Reward and accuracy side by side where there is room, else a row each. */
function curves(state: RunState, frame: Frame, columns: number, c: Colours): Section[] {
  const drawn = [
    { name: "reward", curve: state.reward, text: significant, paint: c.green },
    { name: "accuracy", curve: state.accuracy, text: (value: number) => formatPercent(value), paint: c.cyan },
  ].filter(({ curve }) => curve.last !== undefined);
  if (drawn.length === 0) return [];
  const rows = frame.rows >= 26 ? 5 : 4;
  if (frame.rows < 20 || columns < 60) {
    return drawn.map(({ name, curve, text, paint }) => ({
      rank: 2,
      lines: [
        `${padCells(name, 10)}${paint(padCells(text(curve.last!.value), 9))}${paint(sparkline(drawnPoints(curve), columns - 36))} ${change(curve, text, c)}`,
      ],
    }));
  }
  const width = Math.floor((columns - 3 * (drawn.length - 1)) / drawn.length);
  const blocks = drawn.map(({ name, curve, text, paint }) => {
    const plot = (cells: number) => dotPlot(drawnPoints(curve), width - cells - 1, rows);
    const wide = labels(plot(usualAxis), text, name === "accuracy");
    const axis = Math.max(usualAxis, ...wide.map((label) => label.length));
    const { lines, low, high } = plot(axis);
    const [lowest = "", highest = ""] = labels({ low, high }, text, name === "accuracy");
    const title = `${c.bold(name)} ${paint(text(curve.last!.value))} ${change(curve, text, c)}`;
    return [
      title,
      ...lines.map((line, row) => {
        const label = row === 0 ? highest : row === rows - 1 && high > low ? lowest : "";
        return `${c.dim(label.padStart(axis).slice(0, axis))}${c.dim(row === 0 || row === rows - 1 ? "┤" : "│")}${paint(line)}`;
      }),
    ];
  });
  const height = rows + 1;
  const joined = Array.from({ length: height }, (_, row) =>
    blocks
      .map((block) => padCells(fit(block[row]!, width), width))
      .join("   ")
      .trimEnd(),
  );
  return [{ rank: 3, lines: joined }];
}

const usualAxis = 8;

/** Both ends of an axis, as the values are written elsewhere, or with as many digits as tell the ends apart. */
function labels(
  { low, high }: { readonly low: number; readonly high: number },
  text: (value: number) => string,
  percent: boolean,
): string[] {
  const longest = (texts: readonly string[]): number => Math.max(...texts.map((each) => each.length));
  const usual = [low, high].map(text);
  const exact = axisLabels([low, high], { percent });
  return high > low && longest(exact) > longest(usual) ? exact : usual;
}

function change(curve: Curve, text: (value: number) => string, c: Colours): string {
  const { first, last } = curve;
  return first && last && first.step !== last.step ? c.dim(`from ${text(first.value)}`) : "";
}

function rates(state: RunState, columns: number, c: Colours): string[] {
  const parts: string[] = [];
  const rate = recentTokensPerSecond(state);
  if (rate !== undefined) parts.push(`${c.bold(formatCount(rate))} tokens/s`);
  const seconds = [...state.recentSeconds].sort((a, b) => a - b);
  if (seconds.length > 0) parts.push(`${c.bold(formatSeconds(seconds[seconds.length >> 1]!))} a step`);
  if (state.policyVersion > 0) parts.push(`policy ${c.bold(`v${state.policyVersion}`)}`);
  const workers = Object.values(state.workers);
  const dead = workers.filter(({ status }) => status === "dead").length;
  if (workers.length > 0)
    parts.push(`${plural(workers.length - dead, "worker")}${dead > 0 ? `, ${c.red(`${dead} down`)}` : ""}`);
  if (state.restarts > 0) parts.push(c.yellow(plural(state.restarts, "restart")));
  if (state.checkpoint) parts.push(`checkpoint at ${state.checkpoint.step}`);
  for (const [name, value] of Object.entries(state.metrics)) {
    if (!Number.isFinite(value) && parts.length < 8) parts.push(c.red(`${name} is ${significant(value)}`));
  }
  return parts.length === 0 ? [] : [fit(parts.join(c.dim("  ·  ")), columns)];
}

const activities = [
  { key: "compute", name: "compute", symbol: "█", paint: (c: Colours) => c.green },
  { key: "transfer", name: "transfer", symbol: "▓", paint: (c: Colours) => c.blue },
  { key: "lockWait", name: "lock", symbol: "▒", paint: (c: Colours) => c.yellow },
  { key: "channelWait", name: "channel", symbol: "░", paint: (c: Colours) => c.magenta },
  { key: "idle", name: "idle", symbol: "·", paint: (c: Colours) => c.dim },
] as const satisfies readonly { key: keyof UtilisationShares; [name: string]: unknown }[];

function shares(state: RunState, columns: number, c: Colours): Section[] {
  const components = Object.entries(state.utilisation);
  if (components.length === 0) return [];
  const nameWidth = Math.min(14, Math.max(...components.map(([name]) => name.length))) + 1;
  const barWidth = Math.max(10, Math.min(60, columns - nameWidth - 24));
  const legend = activities.map(({ symbol, name, paint }) => `${paint(c)(symbol)} ${c.dim(name)}`).join("  ");
  const rows = components.map(([name, share]) => {
    const cells = apportion(
      activities.map(({ key }) => share[key]),
      barWidth,
    );
    const drawn = activities.map(({ symbol, paint }, i) => paint(c)(symbol.repeat(cells[i]!))).join("");
    const busiest = activities.slice(1, 4).reduce((a, b) => (share[b.key] > share[a.key] ? b : a));
    const also = share[busiest.key] >= 0.05 ? c.dim(` · ${busiest.name} ${formatPercent(share[busiest.key], 0)}`) : "";
    return `${padCells(fit(name, nameWidth - 1), nameWidth)}${drawn} ${formatPercent(share.compute, 0).padStart(5)}${also}`;
  });
  return [{ rank: 3, lines: [`${c.dim(padCells("time", nameWidth))}${legend}`, ...rows] }];
}

/** What the policy writes now: an episode of the last step that was sampled. */
function sample({ sample: last }: RunState, columns: number, c: Colours): string[] {
  if (last === undefined) return [];
  const { step, reward, prompt, text } = last;
  const facts = `reward ${significant(reward)}, step ${step}`;
  const room = Math.max(0, columns - facts.length - "sample  ".length - 3);
  return [
    `${c.dim("sample")}  ${padCells(fit(`${singleLine(prompt)} → ${singleLine(text)}`, room), room)}   ${c.dim(facts)}`,
  ];
}

function queues(state: RunState, columns: number, c: Colours): string[] {
  const parts = Object.entries(state.queues).map(([channel, { depth, capacity, peak }]) => {
    const limit = capacity ?? Math.max(peak, 1);
    const { filled } = bar(Math.min(1, depth / limit), 8);
    const full = capacity !== undefined && depth >= capacity;
    const text = capacity === undefined ? formatCount(depth) : `${formatCount(depth)}/${formatCount(capacity)}`;
    return `${channel} ${(full ? c.yellow : c.blue)(filled)}${c.dim("·".repeat(8 - filled.length))} ${text}`;
  });
  return parts.length === 0 ? [] : [fit(`${c.dim("queues")}  ${parts.join("   ")}`, columns)];
}

function waits(state: RunState, nowMs: number, columns: number, c: Colours): string[] {
  const longest = Object.entries(state.waits).sort(([, a], [, b]) => a.sinceMs - b.sinceMs);
  return longest.slice(0, 3).map(([who, { on, sinceMs }]) => {
    const seconds = Math.max(0, nowMs - sinceMs) / 1000;
    return fit(`${c.yellow("waiting")} ${who} on ${singleLine(on)} for ${formatClock(seconds)}`, columns);
  });
}

function notices(state: RunState, columns: number, c: Colours, count: number): string[] {
  return state.notices.slice(-count).map((notice) => noticeLine(notice, columns, c));
}

function moreNotices(state: RunState, columns: number, c: Colours): string[] {
  const older = state.notices.slice(-5, -2);
  return older.length === 0 ? [] : [c.dim("earlier"), ...older.map((notice) => noticeLine(notice, columns, c))];
}

function noticeLine({ atMs, level, text }: Notice, columns: number, c: Colours): string {
  const [mark, paint] = {
    info: ["·", c.dim],
    good: ["✓", c.green],
    warn: ["!", c.yellow],
    error: ["✗", c.red],
  }[level] as [string, (text: string) => string];
  return fit(`${c.dim(formatTime(atMs))} ${paint(mark)} ${singleLine(text)}`, columns);
}
