import fc from "fast-check";
import { expect, test } from "vitest";
import { begunFor, type TailOrder, TailRace, wantedOf } from "../../src/live/tail-race.ts";

/** A step: which prompts are late, behind how many ends each is taken, and who would end when if nothing was ever cut. */
type Drawn = {
  readonly groupSize: number;
  readonly prompts: number;
  readonly samples: number;
  readonly taken: readonly { readonly isLate: boolean; readonly at: number }[];
  readonly sealAt: number;
  /** decides the order of ends */
  readonly lengths: readonly number[];
};

const oversampling = fc.constantFrom(1, 1.1, 1.25, 1.5, 2, 3);
const drawn: fc.Arbitrary<Drawn> = fc.record({
  groupSize: fc.integer({ min: 1, max: 4 }),
  prompts: oversampling,
  samples: oversampling,
  taken: fc.array(fc.record({ isLate: fc.boolean(), at: fc.nat(12) }), { minLength: 0, maxLength: 9 }),
  sealAt: fc.nat(12),
  lengths: fc.array(fc.nat(40), { minLength: 1, maxLength: 40 }),
});

type End = { readonly prompt: number; readonly sample: number; readonly at: number };

/** When everything would end, ties by number: each length is behind the instant at which its prompt was taken. */
function endsOf({ groupSize, samples, taken, lengths }: Drawn): End[] {
  const ends = taken.flatMap(({ isLate, at }, prompt) =>
    Array.from({ length: isLate ? groupSize : begunFor(groupSize, samples) }, (_, sample) => ({
      prompt,
      sample,
      at: at + 1 + (lengths[(7 * prompt + sample) % lengths.length] as number),
    })),
  );
  return ends.sort((a, b) => a.at - b.at || a.prompt - b.prompt || a.sample - b.sample);
}

/** The shipped race, told of what happens in order. What is cut does not end. */
function run(step: Drawn) {
  const race = new TailRace(step.groupSize, { prompts: step.prompts, samples: step.samples });
  const orders: (TailOrder & { readonly at: number; readonly after: number })[] = [];
  const cut = new Set<string>();
  let numEnded = 0;
  const obey = (given: readonly TailOrder[], at: number) => {
    for (const order of given) {
      orders.push({ ...order, at, after: numEnded });
      if (order.type === "cut") cut.add(`${order.prompt}/${order.sample}`);
    }
  };
  // A prompt is numbered when it is taken; nothing is taken once none comes any more.
  const sealAt = Math.max(step.sealAt, ...step.taken.map(({ at }) => at));
  const numbers = new Map<number, number>();
  const happening = [
    ...step.taken.map(({ at }, prompt) => ({ at, rank: 0, what: "take" as const, prompt, sample: 0 })),
    { at: sealAt, rank: 1, what: "seal" as const, prompt: 0, sample: 0 },
    ...endsOf(step).map((end) => ({ ...end, rank: 2, what: "end" as const })),
  ].sort((a, b) => a.at - b.at || a.rank - b.rank || a.prompt - b.prompt || a.sample - b.sample);
  for (const { at, what, prompt, sample } of happening) {
    if (what === "take") {
      const took = race.take(step.taken[prompt]!.isLate);
      numbers.set(prompt, took.prompt);
      numbers.set(-1 - took.prompt, prompt);
    } else if (what === "seal") obey(race.seal(), at);
    else {
      const number = numbers.get(prompt) as number;
      const isCut = cut.has(`${number}/${sample}`);
      expect(race.isRunning(number, sample)).toBe(!isCut);
      if (isCut) expect(race.ended(number, sample)).toEqual([]);
      else {
        numEnded++;
        obey(race.ended(number, sample), at);
      }
    }
  }
  const named = orders.map((order) => ({ ...order, prompt: numbers.get(-1 - order.prompt) as number }));
  return { orders: named, sealAt };
}

test("TL1, TL2: what is kept, and of which samples, is what a search over all instants says", () => {
  let numLost = 0;
  fc.assert(
    fc.property(drawn, (step) => {
      const { orders, sealAt } = run(step);
      const ends = endsOf(step);
      const firstOf = (prompt: number) => ends.filter((end) => end.prompt === prompt).slice(0, step.groupSize);
      const position = new Map(ends.map((end, at) => [`${end.prompt}/${end.sample}`, at]));
      const placeOf = ({ prompt, sample }: End) => position.get(`${prompt}/${sample}`) as number;
      const wholeAt = step.taken.map((_, prompt) => placeOf(firstOf(prompt).at(-1) as End));
      const racing = [...step.taken.keys()].filter((prompt) => !step.taken[prompt]!.isLate);
      // The first end by which none comes any more and enough are whole; what is whole by then is kept.
      const wanted = wantedOf(racing.length, step.prompts);
      const over = ends.findIndex(
        (end, at) => end.at >= sealAt && racing.filter((prompt) => (wholeAt[prompt] as number) <= at).length >= wanted,
      );
      // It may have been so when the last prompt came, before that end.
      const before = ends.filter(({ at }) => at < sealAt).length - 1;
      const wasOver = racing.filter((prompt) => (wholeAt[prompt] as number) <= before).length >= wanted;
      const limit = wasOver ? before : over;
      const expected = [...step.taken.keys()].filter(
        (prompt) => step.taken[prompt]!.isLate || (wholeAt[prompt] as number) <= limit,
      );
      const kept = orders.flatMap((order) => (order.type === "keep" ? [order] : []));
      expect(kept.map(({ prompt }) => prompt).sort()).toEqual(expected.sort());
      for (const { prompt, samples } of kept)
        expect(samples).toEqual(
          firstOf(prompt)
            .map(({ sample }) => sample)
            .sort((a, b) => a - b),
        );
      const lost = orders.filter(({ type }) => type === "lose").map(({ prompt }) => prompt);
      numLost += lost.length;
      expect([...kept.map(({ prompt }) => prompt), ...lost].sort()).toEqual([...step.taken.keys()].sort());
      expect(kept.length).toBeGreaterThanOrEqual(wanted);
    }),
    { numRuns: 700 },
  );
  expect(numLost).toBeGreaterThan(70);
});

test("TL3, TL4: what is cut was under way and of a decided group, all of it, and nothing where no more are begun than wanted", () => {
  fc.assert(
    fc.property(drawn, (step) => {
      const { orders } = run(step);
      const ends = endsOf(step);
      const decidedAt = new Map(
        orders.flatMap((order) => (order.type === "cut" ? [] : [[order.prompt, order.after] as const])),
      );
      const kept = new Map(orders.flatMap((order) => (order.type === "keep" ? [[order.prompt, order.samples]] : [])));
      const cut = orders.flatMap((order) => (order.type === "cut" ? [order] : []));
      expect(new Set(cut.map(({ prompt, sample }) => `${prompt}/${sample}`)).size).toBe(cut.length);
      for (const { prompt, sample, after } of cut) {
        expect(decidedAt.get(prompt)).toBe(after);
        expect(kept.get(prompt) ?? []).not.toContain(sample);
      }
      if (step.prompts === 1 && step.samples === 1) expect(orders.filter(({ type }) => type !== "keep")).toEqual([]);
      // Nothing is begun and forgotten: it is kept, cut, or had ended in a group that lost.
      for (const { prompt, sample } of ends) {
        const isCut = cut.some((order) => order.prompt === prompt && order.sample === sample);
        if (kept.has(prompt)) expect(isCut).toBe(!kept.get(prompt)?.includes(sample));
      }
    }),
    { numRuns: 1000 },
  );
});

test("TL1, TL2, TL5: whatever is drawn again, every prompt is kept or lost once, by samples of its last draw alone", () => {
  let [numDrawn, numLostAgain] = [0, 0];
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 3 }),
      oversampling,
      oversampling,
      fc.array(fc.boolean(), { minLength: 1, maxLength: 7 }),
      fc.nat(30),
      fc.infiniteStream(fc.nat(9999)),
      (groupSize, prompts, samples, lateness, sealAfter, choices) => {
        const race = new TailRace(groupSize, { prompts, samples });
        const running: [prompt: number, sample: number][] = [];
        const seen = new Set<string>();
        const lastDraw: number[][] = [];
        const ended: number[][] = [];
        const kept = new Map<number, readonly number[]>();
        const lost = new Set<number>();
        let isSealed = false;
        const wanted = wantedOf(lateness.filter((isLate) => !isLate).length, prompts);
        const next = (below: number) => (choices.next().value as number) % below;
        const begin = (prompt: number, drawn: readonly number[]) => {
          lastDraw[prompt] = [...drawn];
          ended[prompt] = [];
          for (const sample of drawn) {
            expect(seen.has(`${prompt}/${sample}`)).toBe(false);
            seen.add(`${prompt}/${sample}`);
            running.push([prompt, sample]);
          }
        };
        const obey = (orders: readonly TailOrder[]) => {
          for (const order of orders) {
            const { prompt } = order;
            if (order.type === "cut") {
              const at = running.findIndex(([one, sample]) => one === prompt && sample === order.sample);
              expect(at).toBeGreaterThanOrEqual(0);
              running.splice(at, 1);
            } else if (order.type === "lose") {
              const numKept = [...kept.keys()].filter((one) => !lateness[one]).length;
              expect([isSealed, numKept >= wanted, kept.has(prompt), lost.has(prompt), lateness[prompt]]).toEqual([
                ...[true, true, false, false, false],
              ]);
              lost.add(prompt);
            } else {
              expect(kept.has(prompt) || lost.has(prompt)).toBe(false);
              expect(order.samples).toEqual(ended[prompt]?.toSorted((a, b) => a - b));
              expect(order.samples).toHaveLength(groupSize);
              kept.set(prompt, order.samples);
            }
          }
        };
        for (const isLate of lateness) {
          const took = race.take(isLate);
          begin(took.prompt, took.samples);
        }
        // One whose rewards turn out to be alike, at once or later.
        const drawAgain = () => {
          const alike = [...kept.keys()].filter((one) => (lastDraw[one]?.[0] ?? 0) < 8);
          if (alike.length === 0 || next(3) > 0) return;
          const again = alike[next(alike.length)] as number;
          const numOthers = [...kept.keys()].filter((one) => one !== again && !lateness[one]).length;
          kept.delete(again);
          numDrawn++;
          const { samples: drawn, orders } = race.again(again);
          obey(orders);
          // TL5: lost where enough others are kept, and nothing else is.
          expect(lost.has(again)).toBe(isSealed && numOthers >= wanted && !lateness[again]);
          if (lost.has(again)) numLostAgain++;
          expect(drawn.length === 0).toBe(lost.has(again));
          begin(again, drawn);
        };
        for (let at = 0; running.length > 0 || !isSealed; at++) {
          if (at === sealAfter || running.length === 0) {
            isSealed = true;
            obey(race.seal());
            // All may be kept by now, more than are wanted.
            if (running.length === 0) drawAgain();
            if (running.length === 0) break;
          }
          const [prompt, sample] = running.splice(next(running.length), 1)[0] as [number, number];
          ended[prompt]?.push(sample);
          obey(race.ended(prompt, sample));
          drawAgain();
        }
        expect(kept.size + lost.size).toBe(lateness.length);
        expect([...kept.keys()].filter((prompt) => !lateness[prompt]).length).toBeGreaterThanOrEqual(wanted);
      },
    ),
    { numRuns: 600 },
  );
  expect(numDrawn).toBeGreaterThan(100);
  expect(numLostAgain).toBeGreaterThan(3);
});

test("as many are wanted of those that are begun for it, whatever the share", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 4096 }), fc.double({ min: 1, max: 4, noNaN: true }), (wanted, share) => {
      const begun = begunFor(wanted, share);
      expect(begun).toBeGreaterThanOrEqual(wanted);
      expect(wantedOf(begun, share)).toBeGreaterThanOrEqual(wanted);
      expect(wantedOf(begun - 1, share)).toBeLessThanOrEqual(wanted);
      expect(wantedOf(wanted, 1)).toBe(wanted);
    }),
  );
});
