/** What a newcomer may get wrong, one mistake a run; what the run then says is what tests read. */
import { type Sink, type Source, Worker, workflow } from "@treadle/runtime";
import { z } from "zod";

const mistakes = [
  "none",
  "endless-loop",
  "endless-workflow",
  "never-taken",
  "never-put",
  "function-in-result",
  "instance-on-channel",
  "same-ids",
] as const;

export const Item = z.object({ id: z.string(), value: z.number() });
type Item = z.infer<typeof Item>;

class Money {
  readonly cents: number;
  constructor(cents: number) {
    this.cents = cents;
  }
  get euros(): number {
    return this.cents / 100;
  }
}
export const Priced = z.object({ id: z.string(), price: z.instanceof(Money) });

export class JudgeWorker extends Worker {
  /** A pattern that backtracks for ever, as one of a newcomer's reward may. */
  async score(): Promise<boolean> {
    return backtrack();
  }

  async explain(): Promise<object> {
    // Neither await stands there: it holds its devices when it is too late.
    this.devices.lock();
    return { scores: [{ judge: () => 1 }] };
  }

  async double(items: Source<Item>, doubled: Sink<Item>): Promise<void> {
    for await (const { id, value } of items) await doubled.put({ id, value: 2 * value });
  }
}

function backtrack(): boolean {
  return /^(a+)+$/.test(`${"a".repeat(60)}b`);
}

export default workflow(z.strictObject({ mistake: z.enum(mistakes) }), async ({ cluster, config, steps }) => {
  const judge = cluster.launch(JudgeWorker, undefined);
  const items = cluster.channel("items", Item);
  const doubled = cluster.channel("doubled", Item);
  const priced = cluster.channel("priced", Priced);
  const sameIds = config.mistake === "same-ids";
  const draw = (step: number) => [1, 2].map((value) => ({ id: sameIds ? "x" : `${step}.${value}`, value }));
  for await (const { batch } of steps(draw)) {
    if (config.mistake === "instance-on-channel") await priced.put({ id: "x", price: new Money(5) });
    if (config.mistake === "endless-loop") await judge.score();
    if (config.mistake === "function-in-result") await judge.explain();
    if (config.mistake !== "never-put") await items.put(...batch);
    await judge.double(items.source, doubled.sink);
    if (config.mistake === "endless-workflow") backtrack();
    if (config.mistake === "never-taken") continue;
    for await (const _ of doubled);
  }
});
