import type { EpisodeGroup, Prompt } from "@treadle/contracts";
import { createCharacterTokenizer } from "@treadle/learning";
import type { InFlight, Sink, Source, StreamItem, Tracer, WorkerGroup } from "@treadle/runtime";
import { EpisodeOrder, liveMigrations, livePlacements } from "@treadle/trajectories";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { AgentRolloutConfig, AgentRolloutWorker } from "../src/rollout/agent-rollout-worker.ts";
import { RolloutConfig } from "../src/rollout/generation-worker.ts";
import { sharingOf } from "../src/rollout/rank-sharing.ts";
import { RolloutWorker } from "../src/rollout/rollout-worker.ts";
import { ToolConfig } from "../src/tool/tool-config.ts";
import { ToolWorker } from "../src/tool/tool-worker.ts";
import { contextOf } from "./support/context.ts";
import { Group } from "./support/group.ts";
import { toolGroup } from "./support/tool-group.ts";

type SpanOptions = NonNullable<Parameters<Tracer["instant"]>[2]>;

// So few characters that a policy that knows nothing calls its tool often.
const alphabet = "12+<>|!";
const tokenizer = createCharacterTokenizer(alphabet);
const model = { vocabSize: 9, layers: 1, width: 16, heads: 2, contextLength: 48, seed: 4, slots: 3 };
const call = { open: "<", close: ">", end: "|", failure: "!", maxCalls: 4, maxAnswerTokens: 4 };
const usual = { model, alphabet, groupSize: 6, maxTokens: 24, reward: { name: "arithmetic" } };

const prompts: Prompt[] = ["1+2", "2+2", "1", "2", "1+1+1", "2+1", "21", "12+1"].map((text) => ({
  id: text,
  tokens: tokenizer.encode(text),
  answer: "3",
}));

let tool: ToolWorker;
const program = 'echo "$(($1))"';
beforeAll(async () => {
  tool = new ToolWorker(contextOf(ToolConfig.parse({ program, actions: { drivers: ["process"] } }), "tool"));
  await tool.setup();
});
afterAll(() => tool.teardown());

const groupOf = (worker: ToolWorker, isAlive?: () => boolean): WorkerGroup<ToolWorker> =>
  toolGroup(() => worker, isAlive);

/** As many ranks of a tool. */
const ranksOf = (workers: readonly ToolWorker[]): WorkerGroup<ToolWorker> =>
  ({
    size: workers.length,
    onRanks: (rank: number) => groupOf(workers[rank] as ToolWorker),
  }) as unknown as WorkerGroup<ToolWorker>;

/** What a step's ranks take from and put into: each prompt is committed once, by a rank that lives. */
class Stream {
  readonly groups: EpisodeGroup[] = [];
  readonly committed = new Set<string>();
  /** prompts that were taken while earlier ones of their rank were not committed */
  numOvertaking = 0;

  /** of one rank, in one life; `granularity`: of prompts, which come as there is room */
  take(batches: readonly (readonly Prompt[])[], isAlive: () => boolean = () => true, granularity?: number) {
    const sink = {} as Sink<EpisodeGroup>;
    const item = (value: Prompt): StreamItem<Prompt> => ({
      value,
      commit: async (_to?: unknown, ...outputs: readonly unknown[]) => {
        if (!isAlive()) return new Promise<never>(() => {});
        if (this.committed.has(value.id)) throw new Error(`'${value.id}' was committed twice`);
        this.committed.add(value.id);
        this.groups.push(...(outputs as EpisodeGroup[]));
        return undefined;
      },
    });
    const inRoom = async function* (this: Stream, room: () => number) {
      const left = batches.flat();
      const taken: Prompt[] = [];
      while (left.length > 0) {
        const some = left.splice(0, room());
        // As on the way to the runner: the rank computes meanwhile.
        await new Promise((resolve) => setTimeout(resolve, 1));
        if (taken.some(({ id }) => !this.committed.has(id))) this.numOvertaking += some.length;
        taken.push(...some);
        yield some.map(item);
      }
    }.bind(this);
    const source = {
      granularity: granularity ?? "all",
      itemBatches: async function* ({ inFlight }: { readonly inFlight?: InFlight }) {
        if (typeof inFlight === "function") yield* inRoom(inFlight);
        else for (const batch of batches) yield batch.map(item);
      },
    } as unknown as Source<Prompt>;
    return { source, sink };
  }
}

const sorted = (groups: readonly EpisodeGroup[]) => [...groups].sort((a, b) => (a.promptId < b.promptId ? -1 : 1));

type Sharing = Pick<RolloutConfig, "placement" | "migrate">;
type Given = Sharing & {
  readonly contextLength?: number;
  readonly maxAnswerTokens?: number;
  readonly granularity?: number;
};

/** One step: what each rank takes, in batches. */
async function agents(
  shares: readonly (readonly (readonly Prompt[])[])[],
  { contextLength = model.contextLength, maxAnswerTokens = call.maxAnswerTokens, granularity, ...sharing }: Given,
  worker: ToolWorker | readonly ToolWorker[] = tool,
) {
  const given = { ...usual, model: { ...model, contextLength }, call: { ...call, maxAnswerTokens }, ...sharing };
  const config = AgentRolloutConfig.parse(given);
  const group = new Group(shares.length);
  const stream = new Stream();
  const ranks = shares.map((_, rank) => new AgentRolloutWorker(contextOf(config, "rollout", { rank, group })));
  await Promise.all(ranks.map((rank) => rank.setup()));
  const metrics = await Promise.all(
    ranks.map((rank, at) => {
      const { source, sink } = stream.take(shares[at]!, undefined, granularity);
      return rank.generate(source, sink, Array.isArray(worker) ? ranksOf(worker) : groupOf(worker as ToolWorker));
    }),
  );
  return { groups: sorted(stream.groups), metrics, numOvertaking: stream.numOvertaking };
}

const two = [[prompts.slice(0, 3), prompts.slice(3, 5)], [prompts.slice(5)]];
const three = [[prompts.slice(0, 6)], [prompts.slice(6, 7), prompts.slice(7)], []];
const off = { placement: "own", migrate: "never" } as const;

describe("SH3: whatever ranks share, their groups are, bit for bit, those of ranks that share nothing", () => {
  let expected: readonly EpisodeGroup[];
  beforeAll(async () => {
    expected = (await agents([[prompts]], off)).groups;
  }, 240_000);

  test.each(
    livePlacements.flatMap((placement) =>
      liveMigrations
        .filter((migrate) => migrate !== "scaled" || placement === "predicted")
        .flatMap((migrate) => [two, three].map((shares) => ({ placement, migrate, shares, numRanks: shares.length }))),
    ),
  )(
    "placement $placement, migration $migrate, $numRanks ranks",
    async ({ placement, migrate, shares }) => {
      const { groups, metrics } = await agents(shares, { placement, migrate });
      expect(groups).toHaveLength(prompts.length);
      expect(groups).toEqual(expected);
      const moved = metrics.reduce((sum, { episodesMoved }) => sum + (episodesMoved ?? 0), 0);
      // Where all begin at the rank that took them, one rank has more than the other, and the unfinished go where they would be placed now.
      if (migrate === "anew" && placement === "own" && shares === two) expect(moved).toBeGreaterThan(0);
      if (migrate === "never") expect(moved).toBe(0);
    },
    240_000,
  );

  test.each(
    livePlacements.flatMap((placement) =>
      (["never", "anew", "pays"] as const).flatMap((migrate) =>
        [1, 2].map((granularity) => ({ placement, migrate, granularity })),
      ),
    ),
  )(
    "where the next prompt begins while others are under way: %o",
    async (given) => {
      const { groups, numOvertaking } = await agents(two, given);
      expect(groups).toEqual(expected);
      expect(numOvertaking).toBeGreaterThan(0);
    },
    240_000,
  );

  test.each([
    { placement: "own", migrate: "anew" },
    { placement: "least-load", migrate: "pays" },
  ] as const)(
    "where answers of tools have no room in the model's context: %o",
    async (sharing) => {
      const talkative = new ToolWorker(
        contextOf(ToolConfig.parse({ program: "echo 12121212121", actions: { drivers: ["process"] } }), "tool"),
      );
      await talkative.setup();
      try {
        const given = { contextLength: 24, maxAnswerTokens: 12 };
        const alone = await agents([[prompts]], { ...off, ...given }, talkative);
        const [close] = tokenizer.encode(call.close);
        const cut = alone.groups
          .flatMap(({ episodes }) => episodes)
          .filter(({ finishReason, tokens }) => finishReason === "length" && tokens.at(-1) === close);
        expect(cut.length, "some end as an answer has no room").toBeGreaterThan(0);
        expect((await agents(two, { ...sharing, ...given }, talkative)).groups).toEqual(alone.groups);
      } finally {
        await talkative.teardown();
      }
    },
    240_000,
  );

  test("TW4: a sandbox of a trajectory goes along, with what earlier calls left there, at whichever rank of the tool it is", async () => {
    // Counts the calls of its sandbox.
    const counting = 'echo 1 >> calls; wc -l < calls | tr -d " "';
    const actions = { drivers: ["process"], sandboxes: "trajectory" };
    const stateful = [0, 1].map(
      () => new ToolWorker(contextOf(ToolConfig.parse({ program: counting, actions }), "tool")),
    );
    await Promise.all(stateful.map((worker) => worker.setup()));
    try {
      const alone = await agents([[prompts]], off, stateful[0]);
      for (const tools of [stateful.slice(0, 1), stateful]) {
        const moving = await agents(two, { placement: "own", migrate: "anew" }, tools);
        expect(moving.groups).toEqual(alone.groups);
        expect(moving.metrics.some(({ episodesMoved }) => (episodesMoved ?? 0) > 0)).toBe(true);
        const calls = moving.metrics.map(({ toolCalls }) => toolCalls);
        expect(Math.max(...calls), "reports of the tool's ranks are one").toBeGreaterThan(0);
      }
    } finally {
      await Promise.all(stateful.map((worker) => worker.teardown()));
    }
  }, 240_000);

  test("RX3: answers of one turn, which wait at whichever rank has a place", async () => {
    const play = async (shares: readonly (readonly (readonly Prompt[])[])[], sharing: Sharing) => {
      const config = RolloutConfig.parse({ ...usual, ...sharing });
      const group = new Group(shares.length);
      const stream = new Stream();
      const ranks = shares.map((_, rank) => new RolloutWorker(contextOf(config, "rollout", { rank, group })));
      await Promise.all(
        ranks.map(async (rank, at) => {
          await rank.setup();
          const { source, sink } = stream.take(shares[at]!);
          await rank.generate(source, sink);
        }),
      );
      return sorted(stream.groups);
    };
    const alone = await play([[prompts]], off);
    for (const placement of livePlacements) expect(await play(three, { placement, migrate: "never" })).toEqual(alone);
  }, 240_000);
});

test("a trace has each episode's stays, joined by arrows from rank to rank, and why it moved", async () => {
  type Recorded = { readonly rank: number; readonly name: string } & SpanOptions;
  const config = AgentRolloutConfig.parse({ ...usual, call, placement: "own", migrate: "anew" });
  const group = new Group(2);
  const stream = new Stream();
  const stays: Recorded[] = [];
  const moves: Recorded[] = [];
  const ranks = two.map((_, rank) => {
    const tracer = {
      ...contextOf(config, "rollout").tracer,
      complete: (name: string, category: string, _from: number, _to: number, options?: SpanOptions) =>
        category === "episode" && stays.push({ rank, name, ...options }),
      instant: (name: string, _: string, options?: SpanOptions) => moves.push({ rank, name, ...options }),
    };
    return new AgentRolloutWorker({ ...contextOf(config, "rollout", { rank, group }), tracer } as never);
  });
  await Promise.all(ranks.map((rank) => rank.setup()));
  const metrics = await Promise.all(
    ranks.map((rank, at) => {
      const { source, sink } = stream.take(two[at]!);
      return rank.generate(source, sink, groupOf(tool));
    }),
  );
  const moved = metrics.reduce((sum, { episodesMoved }) => sum + (episodesMoved ?? 0), 0);
  expect(moved).toBeGreaterThan(0);
  expect(moves).toHaveLength(moved);
  for (const { attributes } of moves)
    expect(attributes?.why).toMatch(/^\d+ tokens predicted to come; \d+ episodes here, \d+ there$/);
  const departures = stays.filter(({ flowOut }) => flowOut !== undefined);
  expect(departures).toHaveLength(moved);
  for (const { flowOut, rank, name } of departures) {
    const arrivals = stays.filter(({ flowIn }) => flowIn === flowOut);
    expect(arrivals).toMatchObject([{ rank: 1 - rank, name }]);
  }
  for (const { promptId, episodes } of stream.groups) {
    for (const [sample, { tokens, promptLength, mask }] of episodes.entries()) {
      const own = stays.filter(({ name }) => name === `${promptId}/${sample}`);
      const told = own.reduce((sum, { attributes }) => sum + Number(attributes?.tokens), 0);
      expect(told, "what it chose and read at all of them").toBe(mask.length - promptLength);
      expect(tokens.length).toBe(mask.length);
    }
  }
  for (const { rolloutBusy } of metrics) {
    expect(rolloutBusy).toBeGreaterThan(0);
    expect(rolloutBusy).toBeLessThanOrEqual(1);
  }
}, 240_000);

describe("a rank that dies in the midst of a step", () => {
  test.each([
    { died: 1, what: "an episode's host" },
    { died: 0, what: "an episode's owner" },
  ])(
    "SH1, SH2, RX1, RX2: $what, costs no group and doubles none",
    async ({ died }) => {
      const expected = await agents([[prompts]], off);
      const config = AgentRolloutConfig.parse({ ...usual, call, placement: "least-load", migrate: "anew" });
      const group = new Group(3);
      const stream = new Stream();
      const shares = [prompts.slice(0, 4), prompts.slice(4, 6), prompts.slice(6)];
      let isAlive = true;
      let again: readonly Prompt[] | undefined;
      /** ends of episodes, by their names: at ranks that live on before one dies, and anywhere afterwards */
      const [before, after] = [new Set<string>(), [] as string[]];
      const start = async (rank: number, batch: readonly Prompt[], alive: () => boolean) => {
        const context = contextOf(config, "rollout", { rank, group });
        const complete = (name: string, category: string, _from: number, _to: number, options?: SpanOptions) => {
          if (category !== "episode" || !["stop", "length"].includes(String(options?.attributes?.end))) return;
          if (again) after.push(name);
          else if (rank !== died && options?.attributes?.owner === `rollout/${died}`) before.add(name);
        };
        const worker = new AgentRolloutWorker({ ...context, tracer: { ...context.tracer, complete } } as never);
        await worker.setup();
        const { source, sink } = stream.take([batch], alive);
        return { worker, done: worker.generate(source, sink, groupOf(tool, alive)) };
      };
      const ranks = await Promise.all(
        shares.map((batch, rank) => start(rank, batch, rank === died ? () => isAlive : () => true)),
      );
      const lost = () => [...before].filter((name) => !stream.committed.has(name.replace(/\/\d+$/, "")));
      // As soon as something is delivered, episodes are everywhere; some of its owner have ended elsewhere.
      const isTime = () => stream.groups.length > 0 && (died !== 0 || lost().length > 0);
      while (!isTime()) await new Promise((resolve) => setTimeout(resolve, 1));
      isAlive = false;
      const ended = lost();
      // In another order, so that a number of the old process is that of another episode.
      again = shares[died]!.filter(({ id }) => !stream.committed.has(id)).reverse();
      group.kill(died);
      ranks[died]!.done.catch(() => {});
      const { done } = await start(died, again, () => true);
      await Promise.all([done, ...ranks.filter((_, rank) => rank !== died).map((rank) => rank.done)]);
      expect(sorted(stream.groups)).toEqual(expected.groups);
      // The next process may have begun as many as it has places before others have told it.
      const doneAgain = after.filter((name) => ended.includes(name));
      expect(doneAgain.length, "SH2: what has ended elsewhere is not lost").toBeLessThanOrEqual(model.slots);
    },
    240_000,
  );
});

test.each([
  [{ placement: "least-load", migrate: "never" }, 2, "never"],
  [{ placement: "least-load", migrate: "never" }, 1, "idle"],
  [off, 2, "idle"],
] as const)("LW1: with %o, a rank of %i lends its devices while it waits: %s", async (sharing, numRanks, expected) => {
  const config = RolloutConfig.parse({ ...usual, ...sharing });
  const lent: unknown[] = [];
  const lock = async (options?: { readonly lend?: string }) => {
    lent.push(options?.lend);
    return { [Symbol.asyncDispose]: async () => {} };
  };
  const group = new Group(numRanks);
  const ranks = Array.from({ length: numRanks }, (_, rank) => {
    const context = contextOf(config, "rollout", { rank, group });
    return new RolloutWorker({ ...context, devices: { ...context.devices, lock } } as never);
  });
  await Promise.all(
    ranks.map(async (rank) => {
      await rank.setup();
      const { source, sink } = new Stream().take([]);
      await rank.generate(source, sink);
    }),
  );
  expect(new Set(lent)).toEqual(new Set([expected]));
  expect(RolloutWorker.keepsDevices(config, numRanks)).toBe(expected === "never");
});

test("'time' counts seconds where ranks share, as soon as a turn was measured", async () => {
  const config = RolloutConfig.parse({ ...usual, placement: "least-load", migrate: "never", scheduler: "time" });
  const tokenSeconds = vi.spyOn(EpisodeOrder.prototype, "tokenSeconds", "set");
  const group = new Group(2);
  const stream = new Stream();
  try {
    await Promise.all(
      two.map(async (batches, rank) => {
        const worker = new RolloutWorker(contextOf(config, "rollout", { rank, group }));
        await worker.setup();
        const { source, sink } = stream.take(batches);
        await worker.generate(source, sink);
      }),
    );
    expect(tokenSeconds).toHaveBeenCalled();
    for (const [seconds] of tokenSeconds.mock.calls) expect(seconds).toBeGreaterThan(0);
  } finally {
    tokenSeconds.mockRestore();
  }
});

test("episodes move where it pays by default wherever they are placed by prediction, and nowhere else", () => {
  const migrateOf = (given: Sharing) => sharingOf(RolloutConfig.parse({ ...usual, ...given })).migrate;
  expect(livePlacements.map((placement) => [placement, migrateOf({ placement })])).toEqual([
    ["own", "never"],
    ["least-load", "never"],
    ["predicted", "pays"],
  ]);
  expect(migrateOf({})).toBe("never");
  for (const migrate of liveMigrations) expect(migrateOf({ placement: "predicted", migrate })).toBe(migrate);
});

test.each([
  [{ placement: "own", migrate: "scaled" }, /'migrate' is 'scaled' where 'placement' is 'own'/],
  [{ placement: "predicted", interference: { type: "table", values: [1, 3, 2] } }, /'interference' falls somewhere/],
  [{ placement: "predicted", engine: { kind: "torch" } }, /an engine of kind 'torch' makes its own batches/],
] as const)("%o is refused", (given, message) => {
  const config = { ...RolloutConfig.parse(usual), ...given } as unknown as RolloutConfig;
  expect(() => RolloutWorker.checkConfig({ ...config, scheduler: "fcfs" })).toThrow(message);
});
