/** A run's recordings, decided once more: proves that the effects are the same, and shows the state at any instant. */
import { relative } from "node:path";
import { fileURLToPath } from "node:url";
import { type RecordedTurn, TreadleError } from "@treadle/contracts";
import { type PickFunction, Replay, type RunnerState } from "@treadle/core";
import { z } from "zod";
import { loadModule } from "../../author/module-loader.ts";
import { bounded } from "../cluster/user-policy.ts";
import { openRecordings, type Recording } from "../loop/recording.ts";

/** After the commit of a step, or so many seconds after the run began to record. */
export type ReplayUntil = { readonly step: number } | { readonly seconds: number };

export type ReplayedRecording = {
  readonly name: string;
  readonly inputs: number;
  readonly seconds: number;
  /** the last one that was committed */
  readonly step: number | undefined;
  /** `cut-short`: its runner was killed, or the file is cut; `limit`: it grew to `observe.recordMaxMiB` */
  readonly end: "closed" | "limit" | "cut-short";
};

/** What `RunnerState` shows of itself. */
export type ReplayedState = {
  readonly recording: string;
  readonly input: number;
  readonly seconds: number;
  readonly ranks: RunnerState["ranks"];
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
  for (const recording of opened) {
    const { replayed, state } = await replay(recording, projectRoot, until);
    recordings.push(replayed);
    if (state !== undefined) return { recordings, state };
  }
  if (until === undefined) return { recordings, state: undefined };
  const asked = "step" in until ? `step ${until.step}` : `${until.seconds} s`;
  const reached = recordings.map(({ step = 0, seconds }) => `step ${step} and ${seconds.toFixed(1)} s`).join(", ");
  throw new TreadleError(
    "recording.invalid",
    `'${asked}' is not in the recording of '${folder}', which has ${reached}`,
  );
}

async function replay(
  { name, header, turns, end }: Recording,
  projectRoot: string,
  until: ReplayUntil | undefined,
): Promise<{ replayed: ReplayedRecording; state: ReplayedState | undefined }> {
  if (header === undefined)
    return { replayed: { name, inputs: 0, seconds: 0, step: undefined, end: "cut-short" }, state: undefined };
  const machine = new Replay(header);
  let seconds = 0;
  let step: number | undefined;
  const replayed = (): ReplayedRecording => ({
    name,
    inputs: machine.numInputs,
    seconds,
    step,
    end: end() ?? "cut-short",
  });
  for await (const recorded of turns()) {
    const turn = await withPolicy(recorded, projectRoot);
    const atSeconds = (turn[0] - header.startMs) / 1000;
    if (until !== undefined && "seconds" in until && atSeconds > until.seconds)
      return { replayed: replayed(), state: stateOf(name, machine, until.seconds) };
    seconds = atSeconds;
    if (!isSame(machine, turn, name)) {
      throw new TreadleError(
        "recording.invalid",
        `recording '${name}' is decided differently now, first at input ${machine.numInputs} ('${turn[2].type}', ${seconds.toFixed(3)} s after the start): it was altered, or recorded by another version of Treadle`,
      );
    }
    for (const effect of machine.effects) if (effect.type === "commit") step = effect.step;
    if (until !== undefined && "step" in until && step !== undefined && step >= until.step)
      return { replayed: replayed(), state: stateOf(name, machine, seconds) };
  }
  return { replayed: replayed(), state: undefined };
}

const DefinedByUser = z.object({ pick: z.object({ module: z.string(), exportName: z.string() }) });

/** Workflows' own pick policies decide once more, too. Nothing outside of the project is loaded on a recording's word. */
async function withPolicy(turn: RecordedTurn, projectRoot: string): Promise<RecordedTurn> {
  const [atMs, digest, input] = turn;
  if (input.type !== "define-channel") return turn;
  const defined = DefinedByUser.safeParse(input);
  if (!defined.success) return turn;
  const { module, exportName } = defined.data.pick;
  const problem = `the pick policy '${exportName}' of '${module}'`;
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
    devices: state.lockSnapshot(),
    channels: state.channelSnapshots(),
    waits: state.standstill().waits,
    failure: state.failure && `${state.failure.code}: ${state.failure.message}`,
  };
}
