import type { Completion } from "@treadle/contracts";
import { EmulatedEngine, type EmulatedProfile } from "@treadle/engines";
import type {
  EpisodeOrder,
  Interference,
  LiveMigration,
  LivePlacement,
  MeasuredInterference,
} from "@treadle/trajectories";
import { CallOrder, SharedRollout } from "@treadle/workers";
import type { z } from "zod";
import { Mailboxes, VirtualTime } from "./virtual-time.ts";
import type { Script } from "./workload.ts";

export type LiveWay = { readonly placement: LivePlacement; readonly migrate: LiveMigration };

/** What a rank keeps from step to step. */
export type Learned = { readonly order: EpisodeOrder; readonly measured: MeasuredInterference };

export type LiveStep = LiveWay & {
  /** of each rank */
  readonly profiles: readonly (z.input<typeof EmulatedProfile> & { readonly slots: number })[];
  /** seconds that a token takes alone at each rank, where they differ */
  readonly tokenTimes?: readonly number[];
  readonly F: Interference;
  readonly learned: readonly Learned[];
  readonly step: number;
  /** what each rank takes */
  readonly drawn: readonly (readonly Script[])[];
};

export type StepResult = {
  /** from the start to the end of the last episode */
  readonly ms: number;
  readonly numMoves: number;
  readonly made: ReadonlyMap<string, Completion>;
};

const latencyMs = 0.2;
export const sampling = { maxTokens: 65_536, temperature: 1, stopTokens: [0], seed: 1 };

/** One step of all ranks, on virtual time: decisions and messages are those of a run. */
export async function playLive(given: LiveStep): Promise<StepResult> {
  const { profiles, learned, step, drawn, placement, migrate, F } = given;
  const time = new VirtualTime();
  const mailboxes = new Mailboxes(time, latencyMs);
  const scripts = new Map(drawn.flat().map((script) => [script.key, script]));
  const made = new Map<string, Completion>();
  let ms = 0;
  let numMoves = 0;
  const call = (key: number, numAnswers: number) => {
    const tool = scripts.get(key)?.tools[numAnswers];
    return tool && time.sleep(tool.toolSeconds * 1000).then(() => tool);
  };
  const turnTokens = (key: number, from: number) => scripts.get(key)?.turnTokens?.get(from);
  const play = async (rows: readonly Script[], rank: number): Promise<void> => {
    const profile = profiles[rank] as LiveStep["profiles"][number];
    const { slots, contextLength = 8192, prefillSteps: prefillRatio = 0 } = profile;
    const engine = EmulatedEngine.create(profile, { clock: time, rank, turnTokens });
    const { order: episodeOrder, measured } = learned[rank] as Learned;
    const prompts = rows.map(({ prompt }) => prompt);
    const limits = { maxTokens: sampling.maxTokens, contextTokens: contextLength };
    const order = new CallOrder(episodeOrder, prompts, { places: slots, step, limits });
    const ended = (index: number, completion: Completion) => {
      made.set((rows[index] as Script).name, completion);
      ms = time.now();
    };
    if (placement === "own" && migrate === "never") await keep(engine, rows, order, call, ended);
    else {
      const shared = new SharedRollout({
        placement,
        migrate,
        F,
        tokenTimes: given.tokenTimes && [...given.tokenTimes],
        measured,
        clock: time,
        places: slots,
        engine,
        sampling,
        order: { spareCaches: order.options.spareCaches },
        tool: ({ key }, _, answers) => call(key, answers.length),
        over: () => {},
        isToolStateful: false,
        contextLength,
        arrivals: undefined,
        prefillRatio,
        messages: mailboxes.of(rank),
        component: "rollout",
        rank,
        worldSize: drawn.length,
      });
      await shared.play(rows, order, ended);
      await shared.finish();
      numMoves += shared.numMoves;
    }
    await engine.close();
  };
  await time.during(Promise.all(drawn.map(play)));
  for (const { order } of learned) order.learn();
  return { ms, numMoves, made };
}

/** As a rank that shares nothing plays its episodes. */
async function keep(
  engine: EmulatedEngine,
  rows: readonly Script[],
  order: CallOrder,
  call: (key: number, numAnswers: number) => Promise<Script["tools"][number]> | undefined,
  ended: (index: number, completion: Completion) => void,
): Promise<void> {
  const numAnswers = rows.map(() => 0);
  await engine.generate(
    rows.map(({ prompt }) => prompt.tokens),
    sampling,
    {
      keys: rows.map(({ key }) => key),
      order: order.options,
      extend: async (index, completion) => {
        order.turnEnded(index, completion);
        const calling = call((rows[index] as Script).key, numAnswers[index] as number);
        if (!calling) return undefined;
        const { answer, ...outcome } = await calling;
        (numAnswers[index] as number)++;
        order.toolEnded(index, { ...outcome, observedTokens: answer.length });
        return answer;
      },
      onCompletion: (index, completion) => {
        order.ended(index, completion);
        ended(index, completion);
      },
    },
  );
}
