/** An actor that keeps a ledger beside its weights: which prompts every optimiser step was taken on. */
import type { Episode, EpisodeGroup } from "@treadle/contracts";
import { arithmeticAlphabet, createCharacterTokenizer } from "@treadle/learning";
import type { BatchOptions, Source, StateReader, StateWriter } from "@treadle/runtime";
import { ActorWorker, AgentRolloutWorker, InferenceWorker, RolloutWorker, ToolWorker } from "@treadle/workers";
import { z } from "zod";

export const LearningLedger = z.object({
  /** prompts that were trained, in order of steps, of one step in alphabetical order */
  trained: z.array(z.string()),
  /** of the engine */
  policyVersion: z.int(),
  /** episodes that went on in a later step behind an answer of their tool */
  numBehindAnswers: z.int().default(0),
  /** episodes with a turn that several versions have chosen */
  numMixed: z.int().default(0),
});
export type LearningLedger = z.infer<typeof LearningLedger>;

/** Nodes run only modules of their project, and packages may be installed elsewhere. */
export class ProjectRolloutWorker extends RolloutWorker {
  static override readonly module: string = import.meta.url;
}
export class ProjectInferenceWorker extends InferenceWorker {
  static override readonly module: string = import.meta.url;
}

export class ProjectAgentRolloutWorker extends AgentRolloutWorker {
  static override readonly module: string = import.meta.url;
}
export class ProjectToolWorker extends ToolWorker {
  static override readonly module: string = import.meta.url;
}

/** How a tool that counts the calls of each of its sandboxes answers. */
export const countingProgram = 'n=$(cat n 2>/dev/null || echo 0); n=$((n + 1)); echo "$n" > n; echo "$n"';
export const countingCall = { open: "<", close: ">", end: "|", failure: "!", maxCalls: 5, maxAnswerTokens: 3 };
export const agentAlphabet = `${arithmeticAlphabet}<>|!`;
export const agentTokenizer = createCharacterTokenizer(agentAlphabet);

/** What is trained is what `ActorWorker` is given: real episodes, real gradients, summed over ranks. */
export class LedgerActorWorker extends ActorWorker {
  static override readonly module: string = import.meta.url;
  #trained: string[] = [];
  #numBehindAnswers = 0;
  #numMixed = 0;

  override async train(groups: Source<EpisodeGroup>): Promise<Record<string, number>> {
    await using _ = await this.devices.lock();
    const mine: string[] = [];
    let numBehindAnswers = 0;
    let numMixed = 0;
    const note = ({ promptId, episodes }: EpisodeGroup): void => {
      mine.push(promptId);
      for (const episode of episodes) {
        if (wentOnBehindAnswer(episode)) numBehindAnswers++;
        if (hasMixedTurn(episode)) numMixed++;
      }
    };
    const metrics = await super.train(noting(groups, note));
    const all = await this.messages.broadcast((await this.messages.gather(mine))?.flat());
    this.#trained = [...this.#trained, ...(all as string[]).toSorted()];
    const counts = await this.messages.allReduceSum(Float64Array.of(numBehindAnswers, numMixed));
    this.#numBehindAnswers += counts[0] ?? 0;
    this.#numMixed += counts[1] ?? 0;
    return metrics;
  }

  override async checkpoint(state: StateWriter): Promise<void> {
    const { policyVersion } = this.engine;
    const counts = { numBehindAnswers: this.#numBehindAnswers, numMixed: this.#numMixed };
    const ledger = { trained: this.#trained, policyVersion, ...counts };
    state.write("ledger", JSON.stringify(ledger satisfies LearningLedger));
    await super.checkpoint(state);
  }

  override async restore(state: StateReader): Promise<void> {
    const ledger = LearningLedger.parse(JSON.parse(await state.text("ledger")));
    await super.restore(state);
    if (this.engine.policyVersion !== ledger.policyVersion) throw new Error("the ledger is of other weights");
    this.#trained = ledger.trained;
    this.#numBehindAnswers = ledger.numBehindAnswers;
    this.#numMixed = ledger.numMixed;
  }
}

/**
 * Whether an episode went on in a later step behind an answer of its tool. Throws where that did not count on from call to call: one was
 * lost, or made twice.
 */
function wentOnBehindAnswer({ promptId, promptLength, tokens, mask, policyVersions }: Episode): boolean {
  const read = tokens.filter((_, at) => at >= promptLength && mask[at] === 0);
  const answers = agentTokenizer.transcribe(read);
  const expected = Array.from({ length: answers.split("|").length - 1 }, (_, call) => `${call + 1}|`).join("");
  if (answers !== expected) throw new Error(`the tool of '${promptId}' answered '${answers}', and not '${expected}'`);
  const first = policyVersions[promptLength] as number;
  const at = policyVersions.findIndex((version) => version > first);
  return at >= 0 && mask.subarray(promptLength, at).includes(0);
}

/** Of a stretch of tokens that the policy chose, not all are of one version. */
const hasMixedTurn = ({ mask, policyVersions }: Episode): boolean =>
  policyVersions.some(
    (version, at) => at > 0 && mask[at - 1] === 1 && mask[at] === 1 && version !== policyVersions[at - 1],
  );

/** Tells of each group that passes. */
function noting(groups: Source<EpisodeGroup>, tell: (group: EpisodeGroup) => void): Source<EpisodeGroup> {
  const note = (batch: EpisodeGroup[] | undefined) => {
    batch?.forEach(tell);
    return batch;
  };
  return {
    name: groups.name,
    granularity: groups.granularity,
    take: async (options) => note(await groups.take(options)),
    items: (options) => groups.items(options),
    itemBatches: (options) => groups.itemBatches(options),
    async *batches(options?: BatchOptions) {
      for await (const batch of groups.batches(options)) yield note(batch) as EpisodeGroup[];
    },
    async *[Symbol.asyncIterator]() {
      for await (const group of groups) {
        note([group]);
        yield group;
      }
    },
  };
}
