import type { Completion, Sampling } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Reading } from "../src/embedded/slots.ts";
import { Slots } from "../src/embedded/slots.ts";
import { OnNewWeights } from "../src/engine.ts";
import { contextLength, distribution, promptLists, vocabSize } from "./slot-driver.ts";

/** A token whose keys and values weights of that version have computed. */
type Entry = { readonly token: number; readonly version: number };

const hashed = (entries: readonly Entry[]) => entries.map(({ token, version }) => 8 * token + version);
const stop = 1;
const answer = Int32Array.of(2, 4);
const samplingOf = (seed: number): Sampling => ({ maxTokens: 6, temperature: 1, stopTokens: [stop], seed });

type Drive = {
  readonly mode: OnNewWeights;
  readonly size: number;
  readonly prompts: readonly Int32Array[];
  readonly seed: number;
  /** before these steps weights come, of the next version each */
  readonly loads: readonly number[];
  /** steps until `extend` is answered */
  readonly delay: number;
};

/** Whatever is unread is read at once, so what each key was computed with can be told from who chose the next token. */
function drive({ mode, size, prompts, seed, loads, delay }: Drive): Map<number, Completion> {
  const options = { isExtensible: true, onNewWeights: mode };
  const slots = new Slots(size, prompts, samplingOf(seed), contextLength, options);
  const caches: Entry[][] = Array.from({ length: size }, () => []);
  const completions = new Map<number, Completion>();
  const due: { readonly atStep: number; readonly act: () => [number, Completion][] }[] = [];
  const note = (finished: readonly [number, Completion][]) => {
    for (const [index, completion] of finished) completions.set(index, completion);
  };
  let version = 0;
  for (let step = 0; !slots.done; step++) {
    if (loads.includes(step)) slots.renew(version++);
    for (const item of due.splice(0)) {
      if (item.atStep <= step) note(item.act());
      else due.push(item);
    }
    if (slots.done || slots.isHeld) continue;
    const { copies, readings } = slots.next(1000);
    for (const { from, to, count } of copies) caches[to] = caches[from]!.slice(0, count);
    const logprobs = new Float32Array(readings.length * vocabSize);
    readings.forEach(({ cache, from, tokens }: Reading, row) => {
      caches[cache] = [...caches[cache]!.slice(0, from), ...Array.from(tokens, (token) => ({ token, version }))];
      logprobs.set(distribution(hashed(caches[cache]!), version), row * vocabSize);
    });
    note(slots.advance(readings, logprobs, version));
    for (const held of slots.takeHeld()) {
      const isAnswered = held.completion.tokens.filter((token) => token === stop).length <= 2;
      const act = () => slots.extend(held, isAnswered ? answer : undefined, version);
      due.push({ atStep: step + 1 + delay, act });
    }
  }
  return completions;
}

const versionsOf = ({ versions = [] }: Completion) =>
  versions.flatMap(([version, count]) => new Array<number>(count).fill(version));

/** Where what a stop was answered with stands. */
const isAppended = ({ tokens, logprobs }: Completion, at: number) => logprobs[at] === 0 && tokens[at] !== stop;

/** What the distribution of each token was, if the versions that the completion tells are true. */
function expectTrue(mode: OnNewWeights, prompt: Int32Array, completion: Completion): void {
  const { tokens, logprobs } = completion;
  const versions = versionsOf(completion);
  expect(versions).toHaveLength(tokens.length);
  /** of who chose the first token from there on */
  const chosenNext = (at: number): number => (isAppended(completion, at) ? chosenNext(at + 1) : versions[at]!);
  for (const [at, token] of tokens.entries()) {
    if (isAppended(completion, at)) continue;
    const version = versions[at]!;
    const entries = [...prompt, ...tokens.subarray(0, at)].map((each, position) => {
      const next = Math.max(0, position + 1 - prompt.length);
      return { token: each, version: mode === "keep" ? chosenNext(next) : version };
    });
    expect(logprobs[at], `token ${at} of ${tokens} by ${versions}`).toBeCloseTo(
      distribution(hashed(entries), version)[token]!,
      5,
    );
  }
}

describe.each(OnNewWeights.options)("'%s', when weights come", (mode) => {
  test("SL11, SL12, W1: leaves to each token a version that is true, whatever waits, is answered and is copied meanwhile", () => {
    let numMixed = 0;
    fc.assert(
      fc.property(
        // Of several samples each, which copy from each other.
        promptLists.map((prompts) => prompts.slice(0, 4).flatMap((prompt) => [prompt, prompt, prompt])),
        fc.record({
          seed: fc.nat(1000),
          size: fc.integer({ min: 1, max: 6 }),
          loads: fc.uniqueArray(fc.nat(20), { minLength: 1, maxLength: 5 }),
          delay: fc.nat(3),
        }),
        (prompts, drawn) => {
          const completions = drive({ ...drawn, mode, prompts });
          expect(completions.size).toBe(prompts.length);
          for (const [index, completion] of completions) {
            expectTrue(mode, prompts[index]!, completion);
            const versions = versionsOf(completion);
            const breaks = versions.flatMap((version, at) =>
              at > 0 &&
              version !== versions[at - 1] &&
              !isAppended(completion, at) &&
              !isAppended(completion, at - 1) &&
              completion.tokens[at - 1] !== stop
                ? [at]
                : [],
            );
            numMixed += breaks.length;
          }
        },
      ),
    );
    // A turn that is drawn again is of one version.
    if (mode === "restart") expect(numMixed).toBe(0);
    else expect(numMixed).toBeGreaterThan(0);
  });

  test("SL11: tells how many tokens were there when weights came", () => {
    fc.assert(
      fc.property(fc.nat(1000), fc.integer({ min: 1, max: 4 }), (seed, first) => {
        const prompts = [Int32Array.of(3, 2)];
        const [plain] = drive({ mode, size: 1, prompts, seed, loads: [], delay: 0 }).values();
        const [completion] = drive({ mode, size: 1, prompts, seed, loads: [first], delay: 0 }).values();
        const turn = plain!.tokens.indexOf(stop);
        fc.pre((turn < 0 ? plain!.tokens.length : turn + 1) > first); // its first turn is under way then
        const numOld = mode === "restart" ? 0 : first;
        expect(versionsOf(completion!).filter((version) => version === 0)).toHaveLength(numOld);
        expect(completion!.tokens.subarray(0, numOld)).toEqual(plain!.tokens.subarray(0, numOld));
      }),
    );
  });
});
