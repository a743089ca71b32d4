/** One frame of the live view of runs that share devices: who has which, who waits for whom, and for how long. */
import { describePoolWait, type PoolMemberView } from "@treadle/contracts";
import { deviceRange, type RunState } from "@treadle/dashboard/view";
import pc from "picocolors";
import type { Frame } from "./live-frame.ts";
import { bar } from "./plot.ts";
import { fit, formatClock, padCells, plural, singleLine } from "./text.ts";

export type MultiplexState = {
  /** by run, in the order in which they are shown */
  readonly states: ReadonlyMap<string, RunState>;
  readonly pool: readonly PoolMemberView[];
  /** what was said last */
  readonly recent: readonly string[];
  readonly startedMs: number;
};

type Colours = ReturnType<typeof pc.createColors>;

/** At most `rows` lines of at most `columns` cells; what was said last goes first where rows run short. */
export function multiplexFrame({ states, pool, recent, startedMs }: MultiplexState, frame: Frame): string[] {
  const c = pc.createColors(frame.colour);
  const columns = Math.max(20, Math.min(frame.columns, 120));
  const widest = Math.max(...[...states.keys()].map((run) => run.length));
  const clock = formatClock(Math.floor(Math.max(0, frame.nowMs - startedMs) / 1000));
  const runs = [...states].map(([run, state]) => {
    const member = pool.find((each) => each.run === run);
    const share = state.numSteps > 0 ? state.step / state.numSteps : 0;
    const { filled, rest } = bar(share, 12);
    const track = (state.failure ? c.red(filled) : c.green(filled)) + c.dim("·".repeat(rest));
    const steps = padCells(`${state.step}/${state.numSteps || "–"}`, 9);
    return `${padCells(run, widest)}  ${track}  ${steps}  ${slowness(member, c)}  ${standing(state, member, c)}`;
  });
  const head = `${c.bold(c.magenta("treadle"))}  ${c.bold(plural(states.size, "run"))} on the same devices  ${c.dim(clock)}`;
  const room = Math.max(0, frame.rows - runs.length - 2);
  const said = room > 0 ? recent.slice(-room).map((line) => c.dim(singleLine(line))) : [];
  const all = [head, ...runs, ...(said.length > 0 ? ["", ...said] : [])];
  return all.map((line) => fit(line, columns)).slice(0, Math.max(1, frame.rows));
}

/** Against the run alone; over its bound in red. */
function slowness(member: PoolMemberView | undefined, c: Colours): string {
  const { slowdown, maxSlowdown } = member ?? {};
  if (slowdown === undefined) return padCells("", 6);
  const text = padCells(`×${slowdown.toFixed(2)}`, 6);
  return maxSlowdown !== undefined && slowdown > maxSlowdown ? c.red(text) : text;
}

function standing(state: RunState, member: PoolMemberView | undefined, c: Colours): string {
  if (state.failure) return c.red("failed");
  if (state.summary) return c.green("finished");
  if (!member) return c.dim("starting");
  const { holds, waits, stage } = member;
  if (stage === "ending") return c.red("is being ended");
  const parts: string[] = [];
  if (holds) {
    const leaves = holds.drains ? ", and has to yield" : "";
    parts.push(
      `${c.green("has")} ${deviceRange(holds.devices.toSorted(byNumber))} for ${seconds(holds.forMs)}${leaves}`,
    );
  }
  if (waits) parts.push(`${c.yellow("waits")} ${seconds(waits.forMs)} for ${describePoolWait(waits.on)}`);
  return parts.length === 0 ? c.dim("needs no device") : parts.join("; ");
}

/** `gpu:9` comes before `gpu:10`. */
const byNumber = (a: string, b: string): number => a.localeCompare(b, "en", { numeric: true });

const seconds = (ms: number): string => formatClock(Math.floor(ms / 1000));
