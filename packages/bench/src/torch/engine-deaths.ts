import { median } from "@treadle/contracts";
import { type BegunCompletion, type CompletionPiece, TorchEngine } from "@treadle/engines";
import { type BenchRow, row, timed } from "../row.ts";
import { lacksTorch } from "./python-process.ts";

const model = { vocabSize: 512, contextLength: 320, layers: 4, width: 128, heads: 4, slots: 32, seed: 3 };
const sampling = { maxTokens: 256, temperature: 1, stopTokens: [], seed: 9 };
const prompts = Array.from({ length: model.slots }, (_, at) => Int32Array.of(1 + at, 2, 3, 4));
const rounds = 5;
const deaths = 3;

/**
 * An engine on PyTorch whose process is killed in the middle of completions: how long it takes until the next token of one that goes on
 * in another process, beside a plain start of a process with the first token of a prompt. And what it costs to be told what completions
 * have so far, in tokens a second.
 */
export async function* benchEngineDeaths(): AsyncIterable<BenchRow> {
  const notMeasured = await lacksTorch();
  const [told, next] = ["tokens while completions are told of", "from a killed engine to its next token"];
  if (notMeasured !== undefined) {
    yield row({ name: told, value: null, unit: "tokens/s", notMeasured });
    yield row({ name: next, value: null, unit: "s", notMeasured });
    return;
  }
  const [streamed, silent] = await tokensPerSecond();
  yield row({
    name: told,
    value: streamed,
    unit: "tokens/s",
    baseline: silent,
    against: "nothing is told before completions end",
    ratioAtLeast: 0.95,
    notMeasured:
      "devices, where the process's thread waits less for the interpreter; tokens that take longer, of which fewer are told at a time",
  });
  const { fromDeath, fromStart } = await secondsToTokens();
  yield row({
    name: next,
    value: fromDeath,
    unit: "s",
    baseline: fromStart,
    against: "a plain start, to the first token of a prompt",
    ratioAtMost: 1.25,
    notMeasured:
      "the worker's own start, and weights that come from a trainer; a death that only health checks find, which takes engine.healthTimeoutMs",
  });
}

/** With and without being told, in turn. */
async function tokensPerSecond(): Promise<readonly [streamed: number, silent: number]> {
  const engine = await TorchEngine.create(model, { kind: "torch", device: "cpu" });
  try {
    const speeds: [number[], number[]] = [[], []];
    for (let round = 0; round <= rounds; round++) {
      for (const [way, onProgress] of [() => {}, undefined].entries()) {
        const ms = await timed(() => engine.generate(prompts, sampling, { onProgress }));
        if (round > 0) speeds[way]?.push((prompts.length * sampling.maxTokens) / (ms / 1000));
      }
    }
    return [median(speeds[0]), median(speeds[1])];
  } finally {
    await engine.close();
  }
}

async function secondsToTokens(): Promise<{ readonly fromDeath: number; readonly fromStart: number }> {
  const times: Record<"fromDeath" | "fromStart", number[]> = { fromDeath: [], fromStart: [] };
  for (let death = 0; death < deaths; death++) {
    const started = performance.now();
    const engine = await start();
    const begun: (BegunCompletion | undefined)[] = [];
    let killedMs = 0;
    const half = (sampling.maxTokens * prompts.length) / 2;
    let numTold = 0;
    const failed = generate(engine, [], (pieces) => {
      if (numTold === 0) times.fromStart.push((performance.now() - started) / 1000);
      for (const piece of pieces) {
        numTold += piece.tokens.length;
        begun[piece.index] = added(begun[piece.index], piece);
      }
      if (numTold < half || killedMs > 0) return;
      killedMs = performance.now();
      process.kill(engine.pid as number, "SIGKILL");
    }).then(
      () => false,
      () => true,
    );
    if (!(await failed)) throw new Error("the engine that was killed has made all its completions");
    const other = await start();
    let isNext = true;
    await generate(other, begun, () => {
      if (isNext) times.fromDeath.push((performance.now() - killedMs) / 1000);
      isNext = false;
    });
    await Promise.all([engine.close(), other.close()]);
  }
  return { fromDeath: median(times.fromDeath), fromStart: median(times.fromStart) };
}

const start = () => TorchEngine.create(model, { kind: "torch", device: "cpu", streamMs: 0 });

const generate = (
  engine: TorchEngine,
  begun: readonly (BegunCompletion | undefined)[],
  onProgress: (pieces: readonly CompletionPiece[]) => void,
) =>
  engine.generate([], sampling, {
    onProgress,
    join: (add) => {
      for (const [key, prompt] of prompts.entries()) add({ prompt, key, begun: begun[key] });
    },
  });

const added = (had: BegunCompletion | undefined, { tokens, logprobs }: CompletionPiece): BegunCompletion => ({
  tokens: Int32Array.of(...(had?.tokens ?? []), ...tokens),
  logprobs: Float32Array.of(...(had?.logprobs ?? []), ...logprobs),
  ...{ numAppended: 0, turnFrom: 0 },
});
