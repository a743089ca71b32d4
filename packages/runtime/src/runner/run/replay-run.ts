/** A run's recordings, decided once more: proves that the effects are the same, and shows the state at any instant. */
import { relative } from "node:path";
import { fileURLToPath } from "node:url";
import { type RecordedTurn, TreadleError } from "@treadle/contracts";
import { type PickFunction, Replay, type RunnerState } from "@treadle/core";
import { z } from "zod";
import { loadModule } from "../../author/module-loader.ts";
import { bounded } from "../cluster/user-policy.ts";
import { openRecordings, type Recording } from "../loop/recorded-runs.ts";

/** After the commit of a step, so many seconds after the run began to record, or after the newest recording's last input. */
export type ReplayUntil = { readonly step: number } | { readonly seconds: number } | "end";

export type ReplayedRecording = {
  readonly name: string;
  readonly inputs: number;
  readonly seconds: number;
  /** the last one that was committed */
  readonly step: number | undefined;
  /** `cut-short`: its runner was killed, or the file is cut or damaged; `limit`: it grew to `observe.recordMaxMiB` */
  readonly end: "closed" | "limit" | "cut-short";
};

/** What `RunnerState` shows of itself. */
export type ReplayedState = {
  readonly recording: string;
  readonly input: number;
  readonly seconds: number;
  readonly ranks: RunnerState["ranks"];
  /** nodes, calls and steps that are under way */
  readonly shown: RunnerState["shown"];
  readonly devices: ReturnType<RunnerState["lockSnapshot"]>;
  readonly channels: ReturnType<RunnerState["channelSnapshots"]>;
  /** who waits for whom */
  readonly waits: ReturnType<RunnerState["standstill"]>["waits"];
  readonly failure: string | undefined;
};

export type ReplayedRun = {
  readonly recordings: readonly ReplayedRecording[];
  /** when asked for */
  readonly state: ReplayedState | undefined;
};

/**
 * Rejects with `recording.invalid` where nothing is recorded, where it cannot be read, and at the first input whose
 * effects are others than the run's.
 */
export async function replayRun(folder: string, projectRoot: string, until?: ReplayUntil): Promise<ReplayedRun> {
  const opened = await openRecordings(folder);
  if (opened.every(({ header }) => header === undefined)) {
    throw new TreadleError(
      "recording.invalid",
      `nothing is recorded in '${folder}'; set observe.record=true, and run it again`,
    );
  }
  const recordings: ReplayedRecording[] = [];
  let last: ReplayedState | undefined;
  for (const recording of opened) {
    const { replayed, state, isReached } = await replay(recording, projectRoot, until);
    recordings.push(replayed);
    if (isReached) return { recordings, state };
    last = state ?? last;
  }
  if (until === undefined) return { recordings, state: undefined };
  if (until === "end") return { recordings, state: last };
  const asked = "step" in until ? `step ${until.step}` : `${until.seconds} s`;
  const reached = recordings.map(({ step = 0, seconds }) => `step ${step} and ${seconds.toFixed(1)} s`).join(", ");
  throw new TreadleError(
    "recording.invalid",
    `'${asked}' is not in the recording of '${folder}', which has ${reached}; '--until end' shows its last state`,
  );
}

type Replayed = {
  readonly replayed: ReplayedRecording;
  readonly state: ReplayedState | undefined;
  /** the instant that was asked for is in it */
  readonly isReached: boolean;
};

async function replay(
  { name, header, turns, end }: Recording,
  projectRoot: string,
  until: ReplayUntil | undefined,
): Promise<Replayed> {
  if (header === undefined) {
    const replayed = { name, inputs: 0, seconds: 0, step: undefined, end: "cut-short" as const };
    return { replayed, state: undefined, isReached: false };
  }
  const machine = new Replay(header);
  const policies: string[] = [];
  let seconds = 0;
  let step: number | undefined;
  const instant = typeof until === "object" ? until : undefined;
  const at = (shownSeconds: number, isReached: boolean): Replayed => ({
    replayed: { name, inputs: machine.numInputs, seconds, step, end: end() ?? "cut-short" },
    state: stateOf(name, machine, shownSeconds),
    isReached,
  });
  for await (const recorded of turns()) {
    const turn = await withPolicy(recorded, projectRoot, policies);
    const atSeconds = (turn[0] - header.startMs) / 1000;
    if (instant !== undefined && "seconds" in instant && atSeconds > instant.seconds) return at(instant.seconds, true);
    seconds = atSeconds;
    if (!isSame(machine, turn, name)) throw decidedDifferently(name, machine.numInputs, turn, seconds, policies);
    for (const effect of machine.effects) if (effect.type === "commit") step = effect.step;
    if (instant !== undefined && "step" in instant && step !== undefined && step >= instant.step)
      return at(seconds, true);
  }
  // The time that was told of its end is in it, rounded as it was.
  const isEnd = instant !== undefined && "seconds" in instant && instant.seconds <= Math.max(seconds, rounded(seconds));
  return at(seconds, isEnd);
}

const rounded = (seconds: number): number => Number(seconds.toFixed(1));

/** It is as the run wrote it (RW1), so what decides is another one. */
function decidedDifferently(
  name: string,
  input: number,
  [, , { type }]: RecordedTurn,
  seconds: number,
  policies: readonly string[],
): TreadleError {
  const policy =
    policies.length === 0
      ? ""
      : `, or ${policies.join(" or ")} answers differently to the same items: it was changed since, or draws at random or looks at something else than them`;
  return new TreadleError(
    "recording.invalid",
    `recording '${name}' is as its run wrote it, and is decided differently now, first at input ${input} ('${type}', ${seconds.toFixed(3)} s after the start): another version of Treadle recorded it${policy}`,
  );
}

const DefinedByUser = z.object({ pick: z.object({ module: z.string(), exportName: z.string() }) });

/** Workflows' own pick policies decide once more, too. Nothing outside of the project is loaded on a recording's word. */
async function withPolicy(turn: RecordedTurn, projectRoot: string, policies: string[]): Promise<RecordedTurn> {
  const [atMs, digest, input] = turn;
  if (input.type !== "define-channel") return turn;
  const defined = DefinedByUser.safeParse(input);
  if (!defined.success) return turn;
  const { module, exportName } = defined.data.pick;
  const problem = `the pick policy '${exportName}' of '${module}'`;
  policies.push(problem);
  if (!module.startsWith("file:") || relative(projectRoot, fileURLToPath(module)).startsWith(".."))
    throw new TreadleError(
      "recording.invalid",
      `${problem} is not below the project root '${projectRoot}'; replay there`,
    );
  const exports = await loadModule(module).catch((cause: unknown) => {
    throw new TreadleError("recording.invalid", `${problem} cannot be loaded`, { cause });
  });
  const pick = exports[exportName];
  if (typeof pick !== "function")
    throw new TreadleError("recording.invalid", `${problem} is not exported there any more`);
  return [atMs, digest, { ...input, pick: { module, exportName, pick: bounded(pick as PickFunction) } }];
}

function isSame(machine: Replay, turn: RecordedTurn, name: string): boolean {
  try {
    return machine.next(turn);
  } catch (cause) {
    throw new TreadleError(
      "recording.invalid",
      `input ${machine.numInputs} of recording '${name}' ('${turn[2].type}') is none that a run has`,
      { cause },
    );
  }
}

function stateOf(recording: string, { state, numInputs }: Replay, seconds: number): ReplayedState {
  return {
    recording,
    input: numInputs,
    seconds,
    ranks: state.ranks.map(({ worker, component, index, place, phase, incarnation }) => {
      return { worker, component, index, place, phase, incarnation };
    }),
    shown: state.shown,
    devices: state.lockSnapshot(),
    channels: state.channelSnapshots(),
    waits: state.standstill().waits,
    failure: state.failure && `${state.failure.code}: ${state.failure.message}`,
  };
}
