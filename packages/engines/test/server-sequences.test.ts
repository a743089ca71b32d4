/** SQ1 to SQ6: what a call asks of a server, whatever order its answers come in. */
import type { Completion, Sampling } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { mix } from "../src/random.ts";
import { type SequenceRequest, Sequences } from "../src/server/sequences.ts";
import type { TokenAnswer } from "../src/server/server-protocol.ts";

const vocabSize = 8;
const contextLength = 12;
const limits = { vocabSize, contextLength, drawsByPosition: false, policyVersion: () => 3 };
const base: Sampling = { maxTokens: 5, temperature: 1, stopTokens: [1, 2], seed: 7 };

/** A server whose model's own end is token 0, and which says so little as a server may. */
function answerTo({ tokens, maxTokens, seed, stopTokens }: SequenceRequest, ownEnd = 0): TokenAnswer {
  const chosen: number[] = [];
  let reason: TokenAnswer["reason"] = "length";
  while (chosen.length < maxTokens) {
    const token = mix(seed, tokens.length, chosen.length) % vocabSize;
    chosen.push(token);
    if (!stopTokens.includes(token) && token !== ownEnd) continue;
    reason = "stop";
    break;
  }
  return { tokens: chosen, logprobs: chosen.map((token) => -1 - token), reason, labels: [] };
}

const promptsOf = fc.array(fc.array(fc.nat(vocabSize - 1), { minLength: 1, maxLength: contextLength - 1 }), {
  minLength: 1,
  maxLength: 6,
});

/** Plays a call to its end; `pick` says which of the running requests is answered next, and what else happens. */
function play(
  prompts: readonly number[][],
  sampling: Sampling,
  decide: () => { readonly pick: number; readonly act: "answer" | "lose" | "restart" },
  extension?: (completion: Completion) => Int32Array | undefined,
): Completion[] {
  const sequences = new Sequences(
    prompts.map((tokens) => Int32Array.from(tokens)),
    sampling,
    limits,
    extension !== undefined,
  );
  const completions: Completion[] = [];
  const running: SequenceRequest[] = [];
  const deliver = (index: number, completion: Completion | undefined) => {
    if (!completion) return;
    expect(completions[index]).toBeUndefined();
    completions[index] = completion;
  };
  for (let rounds = 0; !sequences.done; rounds++) {
    for (let request = sequences.take(); request; request = sequences.take()) running.push(request);
    const { pick, act } = decide();
    const [request] = running.splice(pick % running.length, 1);
    if (!request) throw new Error("nothing runs, and the call is not done");
    if (act === "restart" && rounds < 20) {
      sequences.restart();
      running.push(request);
    } else if (act === "lose" && rounds < 20) deliver(request.index, sequences.lose(request));
    else {
      const { ended, held } = sequences.answer(request, answerTo(request));
      deliver(request.index, ended);
      if (held) deliver(request.index, sequences.extend(request, extension?.(held)));
    }
  }
  return completions;
}

const inOrder = () => ({ pick: 0, act: "answer" }) as const;
const decisions = fc.infiniteStream(
  fc.record({
    pick: fc.nat(1000),
    act: fc.constantFrom("answer" as const, "answer" as const, "answer" as const, "lose" as const, "restart" as const),
  }),
);

test("SQ1, SQ2 completions are the same in whatever order answers come, are lost, or begin again", () => {
  fc.assert(
    fc.property(promptsOf, decisions, fc.boolean(), (prompts, stream, isExtended) => {
      const extend = isExtended
        ? ({ tokens }: Completion) => (tokens.length % 2 === 0 ? Int32Array.of(5, 6) : undefined)
        : undefined;
      const next = stream[Symbol.iterator]();
      const shuffled = play(prompts, base, () => next.next().value!, extend);
      expect(shuffled).toEqual(play(prompts, base, inOrder, extend));
    }),
  );
});

test("one that has begun elsewhere goes on as it would have there, and begins at its prompt where all begin again", () => {
  fc.assert(
    fc.property(
      promptsOf,
      fc.nat(3),
      fc.boolean(),
      fc.boolean(),
      ([prompt = []], numBegun, isRestarted, drawsByPosition) => {
        const [whole] = play([prompt], { ...base, stopTokens: [] }, inOrder);
        const begun = {
          tokens: whole!.tokens.slice(0, numBegun),
          logprobs: whole!.logprobs.slice(0, numBegun),
          numAppended: 0,
          turnFrom: 0,
        };
        fc.pre(numBegun < whole!.tokens.length);
        const sequences = new Sequences([], { ...base, stopTokens: [] }, { ...limits, drawsByPosition });
        expect(sequences.done).toBe(true);
        expect(sequences.join({ prompt: Int32Array.from(prompt), key: 0, begun })).toBe(0);
        expect(sequences.done).toBe(false);
        if (isRestarted) sequences.restart();
        const request = sequences.take()!;
        expect(request.tokens).toEqual([...prompt, ...(isRestarted ? [] : begun.tokens)]);
        expect(request.seed).toBe(mix(base.seed, 0, isRestarted || drawsByPosition ? 0 : numBegun) >>> 1);
        expect(request.maxTokens).toBe(whole!.tokens.length - (isRestarted ? 0 : numBegun));
      },
    ),
  );
});

test("SQ3 a completion ends at a stop token, at its limit or at the context, and nowhere else", () => {
  fc.assert(
    fc.property(
      promptsOf,
      fc.integer({ min: 1, max: 20 }),
      fc.subarray([0, 1, 2]),
      (prompts, maxTokens, stopTokens) => {
        const completions = play(prompts, { ...base, maxTokens, stopTokens }, inOrder);
        completions.forEach(({ tokens, logprobs, finishReason, policyVersion }, index) => {
          expect(logprobs.length).toBe(tokens.length);
          expect(policyVersion).toBe(3);
          const isStopped = stopTokens.includes(tokens.at(-1)!);
          expect(finishReason).toBe(isStopped ? "stop" : "length");
          const isFull = tokens.length === maxTokens || prompts[index]!.length + tokens.length === contextLength;
          expect(isStopped || isFull).toBe(true);
          expect([...tokens.slice(0, -1)].some((token) => stopTokens.includes(token))).toBe(false);
        });
      },
    ),
  );
});

test("SQ4 what is appended counts for the context alone, and has log-probability 0", () => {
  fc.assert(
    fc.property(promptsOf, fc.integer({ min: 1, max: 4 }), (prompts, numAppended) => {
      const added = new Int32Array(numAppended).fill(6);
      const asked: number[] = [];
      const completions = play(prompts, base, inOrder, (completion) => {
        asked.push(completion.tokens.length);
        return added;
      });
      completions.forEach(({ tokens, logprobs, finishReason }, index) => {
        const chosen = [...logprobs].filter((logprob) => logprob !== 0).length;
        expect(chosen).toBeLessThanOrEqual(base.maxTokens);
        expect((tokens.length - chosen) % numAppended).toBe(0);
        expect(prompts[index]!.length + tokens.length).toBeLessThanOrEqual(contextLength);
        const isFull = chosen === base.maxTokens || prompts[index]!.length + tokens.length === contextLength;
        if (finishReason === "stop") expect(isFull).toBe(true);
      });
    }),
  );
});

test("SQ6 what is told of a completion is the start of it, from where it may go on, whatever is lost, restarted or appended", () => {
  const steps = fc.infiniteStream(
    fc.record({
      salt: fc.nat(),
      act: fc.constantFrom("see", "confirm", "tell", "part", "part", "end", "lose", "restart"),
    }),
  );
  fc.assert(
    fc.property(promptsOf, steps, fc.boolean(), (prompts, stream, isExtensible) => {
      const next = stream[Symbol.iterator]();
      const sequences = new Sequences(
        prompts.map((tokens) => Int32Array.from(tokens)),
        base,
        limits,
        isExtensible,
      );
      /** What a server has chosen for each request; asked again, it chooses something else. */
      const running = new Map<number, { request: SequenceRequest; rest: TokenAnswer; sent: number[] }>();
      const chosen = prompts.map((): number[] => []);
      const appended = prompts.map(() => 0);
      const attempts = prompts.map(() => 0);
      const known = prompts.map((): { attempt: number; tokens: number[] } => ({ attempt: 0, tokens: [] }));
      const over = new Set<number>();
      const tell = () => {
        for (const { index, attempt, from, tokens, logprobs } of sequences.pieces()) {
          const had = known[index]!.attempt === attempt ? known[index]!.tokens : [];
          expect(from).toBeLessThanOrEqual(had.length);
          const all = [...had.slice(0, from), ...tokens];
          known[index] = { attempt, tokens: all };
          expect(attempt).toBe(attempts[index]);
          expect(over.has(index)).toBe(false);
          // What was appended, which is always a 6, was chosen with certainty.
          for (const [at, token] of tokens.entries())
            expect(token === 6 ? [0, -7] : [-1 - token]).toContain(logprobs[at]);
          const whole = [...chosen[index]!, ...(running.get(index)?.sent ?? [])];
          expect(all).toEqual(whole.slice(0, all.length));
          expect(all.length - appended[index]!).toBeLessThan(base.maxTokens);
          expect(prompts[index]!.length + all.length).toBeLessThan(contextLength);
          if (all.length > chosen[index]!.length) expect(base.stopTokens).not.toContain(all.at(-1));
        }
      };
      for (let rounds = 0; !sequences.done && rounds < 300; rounds++) {
        const { salt, act } = next.next().value!;
        for (let request = sequences.take(); request; request = sequences.take())
          running.set(request.index, { request, rest: answerTo({ ...request, seed: request.seed ^ salt }), sent: [] });
        const all = [...running.values()];
        const one = all[salt % Math.max(all.length, 1)];
        if (act === "see") sequences.see();
        if (act === "confirm") sequences.confirmSeen();
        if (act === "tell" || !one) tell();
        if (!one) continue;
        const { request, rest, sent } = one;
        const { index } = request;
        if (act === "part" && sent.length < rest.tokens.length) {
          const to = sent.length + 1 + (salt % 2);
          sequences.arrive(request, {
            tokens: rest.tokens.slice(sent.length, to),
            logprobs: rest.logprobs.slice(sent.length, to),
          });
          sent.push(...rest.tokens.slice(sent.length, to));
        }
        if (act === "lose") {
          running.delete(index);
          sequences.lose(request);
          tell(); // as whoever loses one does
        }
        if (act === "restart" && rounds < 100) {
          sequences.restart();
          for (const at of prompts.keys()) {
            if (over.has(at)) continue;
            chosen[at] = [];
            appended[at] = 0;
            attempts[at]!++;
          }
          running.clear();
        }
        if (act === "end") {
          running.delete(index);
          const { ended, held } = sequences.answer(request, rest);
          chosen[index]!.push(...rest.tokens);
          const addition = salt % 3 === 0 ? Int32Array.of(6) : undefined;
          const isOver = ended ?? (held && sequences.extend(request, addition));
          if (isOver) over.add(index);
          else if (held && addition) {
            chosen[index]!.push(...addition);
            appended[index]! += addition.length;
          }
        }
      }
    }),
  );
});

test("SQ6 all that has arrived is told at last, and once", () => {
  const sequences = new Sequences([Int32Array.of(4)], { ...base, maxTokens: 8, stopTokens: [1] }, limits);
  const request = sequences.take()!;
  const arrive = (...tokens: number[]) => sequences.arrive(request, { tokens, logprobs: tokens.map(() => -1) });
  const told = () => sequences.pieces().map(({ from, tokens }) => [from, ...tokens]);
  arrive(3, 4);
  expect(told()).toEqual([]);
  sequences.see();
  arrive(5);
  expect(told()).toEqual([]);
  sequences.confirmSeen();
  expect(told()).toEqual([[0, 3, 4]]);
  sequences.see();
  sequences.confirmSeen();
  expect(told()).toEqual([[2, 5]]);
  expect(told()).toEqual([]);
  arrive(1);
  sequences.see();
  sequences.confirmSeen();
  expect(told()).toEqual([]); // it stops there
  expect(() => arrive(3)).toThrow(/after the stop token '1'/);
});

describe("SQ5 what cannot be an answer is refused", () => {
  const answers: readonly [string, Partial<TokenAnswer>, RegExp][] = [
    [
      "more tokens than asked for",
      { tokens: [3, 3, 3, 3, 3, 3], logprobs: [-1, -1, -1, -1, -1, -1] },
      /'6' tokens where '5'/,
    ],
    ["a token without log-probability", { tokens: [3, 1], logprobs: [-1] }, /'1' log-probabilities for '2'/],
    ["a token outside the vocabulary", { tokens: [8], logprobs: [-1] }, /token '8'/],
    ["tokens after a stop", { tokens: [1, 3], logprobs: [-1, -1] }, /after the stop token '1'/],
    ["a log-probability above 0", { tokens: [3], logprobs: [0.5] }, /'0.5'/],
    ["no number", { tokens: [3], logprobs: [Number.NaN] }, /'NaN'/],
    ["an end that nobody asked for", { tokens: [3], logprobs: [-1], reason: "abort" }, /nobody here/],
    ["no progress", { tokens: [], logprobs: [], reason: "stop" }, /nobody here/],
  ];
  test.each(answers)("%s", (_, answer, message) => {
    const sequences = new Sequences([Int32Array.of(4)], base, limits);
    const whole = { tokens: [], logprobs: [], reason: "length" as const, labels: [], ...answer };
    expect(() => sequences.answer(sequences.take()!, whole)).toThrow(message);
  });
});

test("what 'priority' throws when a completion waits again is thrown, and the completion is where it was", () => {
  let asked = 0;
  const priority = () => {
    if (asked++ > 0) throw new Error("no prediction");
    return 0;
  };
  const sequences = new Sequences([Int32Array.of(4)], base, limits, false, { order: { priority } });
  const request = sequences.take()!;
  const ownEnd = { tokens: [3], logprobs: [-1], reason: "stop" as const, labels: [] }; // which is no stop here (SQ3)
  expect(() => sequences.answer(request, ownEnd)).toThrow("no prediction");
  expect(sequences.isRunning(request)).toBe(true);
});

test("an abort ends what waits at once, and what runs with its answer", () => {
  const sequences = new Sequences([Int32Array.of(4), Int32Array.of(5)], base, limits);
  const first = sequences.take()!;
  expect(sequences.abort()).toMatchObject([[1, { finishReason: "abort", tokens: { length: 0 } }]]);
  expect(sequences.take()).toBeUndefined();
  const { ended } = sequences.answer(first, { tokens: [3], logprobs: [-1], reason: "abort", labels: [] });
  expect(ended).toMatchObject({ finishReason: "abort", tokens: Int32Array.of(3) });
  expect(sequences.done).toBe(true);
});
