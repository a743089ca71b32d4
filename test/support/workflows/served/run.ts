/** A rollout of two ranks, each with a server of its own; what it generates is written down. */
import { appendFileSync } from "node:fs";
import { EpisodeGroup, Prompt } from "@treadle/contracts";
import { type Source, Worker, workflow } from "@treadle/runtime";
import { RolloutConfig, RolloutWorker } from "@treadle/workers";
import { z } from "zod";

const Config = z.strictObject({ ledger: z.string(), rollout: RolloutConfig });

/** Of this project, as agents start no other code. */
export class ServedRollout extends RolloutWorker {
  static override readonly module: string = import.meta.url;
}

export class WriterWorker extends Worker<{ readonly ledger: string }> {
  async write(groups: Source<z.infer<typeof EpisodeGroup>>): Promise<void> {
    for await (const batch of groups.batches())
      for (const { promptId, episodes } of batch)
        appendFileSync(
          this.config.ledger,
          `${JSON.stringify({ promptId, tokens: episodes.map(({ tokens }) => [...tokens]) })}\n`,
        );
  }
}

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const rollout = cluster.launch(ServedRollout, config.rollout, { ranks: { fixed: 2 } });
  const writer = cluster.launch(WriterWorker, { ledger: config.ledger });
  const prompts = cluster.channel("prompts", Prompt);
  const groups = cluster.channel("groups", EpisodeGroup);
  const promptsOf = (step: number) =>
    Array.from({ length: config.batch }, (_, at) => ({
      id: `${step}/${at}`,
      tokens: Int32Array.of(1 + (at % 9), 11, 1 + (step % 9)),
      answer: "1",
    }));
  for await (const { batch } of steps(promptsOf)) {
    await prompts.put(...batch);
    rollout.generate(prompts.source, groups.sink);
    await writer.write(groups.source);
    report({ reward: 0 });
  }
});
