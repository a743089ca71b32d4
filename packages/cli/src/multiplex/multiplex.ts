/**
 * Several runs at once on the devices of this machine, each in a process of its own.
 *
 * - MR1 whatever becomes of one run, the others go on: this process waits for each, and judges none by another.
 */
import type { MeasuredSlowdown, PooledRunMessage, PoolMemberView, RunEvent, RunSummary } from "@treadle/contracts";
import {
  DevicePool,
  newPoolHistoryName,
  PooledProcess,
  PoolHistoryFile,
  type PoolLimits,
  type SharingOptions,
} from "@treadle/runtime/runner";
import type { RunSpec } from "./run-specs.ts";

export type MultiplexOptions = {
  readonly specs: readonly RunSpec[];
  readonly limits: PoolLimits;
  readonly sharing: SharingOptions;
  readonly runsRoot: string;
  /** the command line's own script */
  readonly script: string;
  readonly onEvent: (run: string, event: RunEvent) => void;
  readonly onNotice: (run: string, text: string) => void;
  /** called once, with what tells which run has which devices */
  readonly onPool: (view: () => readonly PoolMemberView[]) => void;
  readonly stop: AbortSignal;
  readonly kill: AbortSignal;
};

export type MultiplexedRun = {
  readonly name: string;
  readonly runId: string | undefined;
  readonly outcome: "finished" | "stopped" | "failed" | "ended";
  /** of what did not finish */
  readonly why: string | undefined;
  readonly seconds: number;
  /** it had devices for itself */
  readonly leasedSeconds: number;
  /** it waited for devices that others had */
  readonly waitedSeconds: number;
  /** what others that computed beside it have cost it, by what was measured */
  readonly lostSeconds: number;
  /** before it was admitted */
  readonly queuedSeconds: number;
  readonly leases: number;
  /** how much longer it took, from its admission on, than it would have without waiting */
  readonly slowdown: number | undefined;
  readonly summary: RunSummary | undefined;
};

export type Multiplexed = {
  readonly seconds: number;
  /** of all runs; no more than `seconds` where they take turns on all of their devices */
  readonly leasedSeconds: number;
  /** what the runs would have taken one after the other: all that they took but waiting, and what others that computed beside them cost */
  readonly serialSeconds: number;
  readonly runs: readonly MultiplexedRun[];
  /** as they were measured, in this and earlier runs */
  readonly slowdowns: readonly MeasuredSlowdown[];
  /** the name of the history from which `treadle trace --pool` draws a page of all runs */
  readonly history: string;
};

export async function multiplex(options: MultiplexOptions): Promise<Multiplexed> {
  const beganMs = performance.now();
  const { limits, sharing, onNotice } = options;
  const history = new PoolHistoryFile({ folder: options.runsRoot, name: newPoolHistoryName() });
  const pool = new DevicePool(limits, { sharing, onNotice: (text) => onNotice("all", text), history });
  options.onPool(() => pool.view());
  try {
    const runs = await Promise.all(options.specs.map((spec) => runOne(spec, { pool, history }, options))); // MR1
    const leasedSeconds = runs.reduce((sum, run) => sum + run.leasedSeconds, 0);
    const seconds = (performance.now() - beganMs) / 1000;
    return {
      seconds,
      leasedSeconds,
      serialSeconds: serialSeconds(runs),
      runs,
      slowdowns: pool.slowdowns(),
      history: history.name,
    };
  } finally {
    await pool.close();
  }
}

const serialSeconds = (runs: readonly MultiplexedRun[]): number =>
  runs.reduce((sum, run) => sum + run.seconds - run.queuedSeconds - run.waitedSeconds - run.lostSeconds, 0);

type Pooling = { readonly pool: DevicePool; readonly history: PoolHistoryFile };

async function runOne(spec: RunSpec, { pool, history }: Pooling, options: MultiplexOptions): Promise<MultiplexedRun> {
  const { name } = spec;
  const { onEvent, onNotice, stop, kill } = options;
  const beganMs = performance.now();
  let runId: string | undefined;
  let summary: RunSummary | undefined;
  let failure: string | undefined;
  let ended: string | undefined;
  const onMessage = (message: PooledRunMessage) => {
    if ("pool" in message) {
      pool.received(name, message.pool);
      return;
    }
    const { event } = message;
    if (event.type === "run-started") {
      runId = event.runId;
      history.isRun(name, runId);
    }
    if (event.type === "run-finished") summary = event.summary;
    if (event.type === "run-failed") failure = event.error.message;
    onEvent(name, event);
  };
  const onInvalid = (why: string) => {
    ended ??= why;
  };
  const child = new PooledProcess({
    script: options.script,
    args: argumentsOf(spec, options.runsRoot),
    onMessage,
    onInvalid,
  });
  pool.add(name, {
    reply: (reply) => {
      if (reply.type === "refused") failure ??= reply.why;
      child.reply(reply);
    },
    end: (why) => {
      ended = why;
      onNotice(name, why);
      child.signal("SIGKILL");
    },
  });
  const signal = () => child.signal("SIGINT");
  for (const each of [stop, kill]) each.addEventListener("abort", signal);
  try {
    const { code, signal: by } = await child.gone;
    const { leasedMs, waitedMs, lostMs, queuedMs, leases, slowdown } = pool.gone(name);
    const outcome =
      code === 0 ? "finished" : ended !== undefined ? "ended" : code === 130 && stop.aborted ? "stopped" : "failed";
    const how = by === null ? `its process ended with exit code ${code}` : `its process was ended by ${by}`;
    return {
      ...{ name, runId, outcome, summary, leases, slowdown },
      why: outcome === "finished" || outcome === "stopped" ? undefined : (ended ?? failure ?? how),
      seconds: (performance.now() - beganMs) / 1000,
      leasedSeconds: leasedMs / 1000,
      waitedSeconds: waitedMs / 1000,
      lostSeconds: lostMs / 1000,
      queuedSeconds: queuedMs / 1000,
    };
  } finally {
    for (const each of [stop, kill]) each.removeEventListener("abort", signal);
  }
}

const argumentsOf = ({ workflow, configFile, overrides }: RunSpec, runsRoot: string): string[] => [
  "run",
  "--pooled",
  ...["--runs", runsRoot],
  ...(configFile === undefined ? [] : ["--config", configFile]),
  ...overrides.flatMap((each) => ["--set", each]),
  workflow,
];
