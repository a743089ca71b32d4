/**
 * The batch of a mismatch alarm, as it lies in a run's artifacts: `mismatch/step-000012/rank-0.json`, and the files that it lists.
 *
 * KB1 a batch whose JSON is there is whole: that is written last, and has the SHA-256 of each file.
 * KB2 what is read is what the actor had: ids, masks, versions, and both log-probabilities, bit for bit.
 * KB3 what is read together is of one batch: ranks of one group in one step. A resumed run may alarm again at a step of which the
 *    folder has files, with fewer ranks; what is left of the batch before is named, and so are ranks that are missing.
 */
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { Episode, FinishReason, TreadleError } from "@treadle/contracts";
import { decodeArrays, encodeArrays } from "@treadle/engines";
import { z } from "zod";

export const mismatchFolder = "mismatch";
/** Of a file, which artifacts bound by 8 MiB. */
const mostFileBytes = 6 * 2 ** 20;
/** Of a token in files; what an episode takes beside its tokens there and in the JSON is about the rest. */
const tokenBytes = 20;
const episodeBytes = 256;

export const bytesOf = ({ tokens, promptId }: Episode): number =>
  tokenBytes * tokens.length + episodeBytes + promptId.length;

export const KeptFacts = z.strictObject({
  format: z.literal(1),
  step: z.int().nonnegative(),
  worker: z.string(),
  numRanks: z.int().positive().max(65_536),
  /** of the trained weights when the step began, which gave the trainer's log-probabilities unless inference has scored */
  policyVersion: z.int().nonnegative(),
  weightsId: z.string().optional(),
  /** the trainer's kind of engine */
  engine: z.string(),
  alarm: z.number(),
  /** of the step, over all ranks */
  meanKl: z.number(),
  maxKl: z.number(),
  effectiveSamples: z.number(),
  cut: z.number(),
  /** that this rank has trained on */
  numEpisodes: z.int().nonnegative(),
  files: z.array(
    z.strictObject({
      name: z.string().regex(/^rank-\d+-\d+\.safetensors$/),
      sha256: z.string(),
      episodes: z.array(
        z.strictObject({
          promptId: z.string(),
          engine: z.string().optional(),
          finishReason: FinishReason,
          reward: z.number(),
        }),
      ),
    }),
  ),
});
export type KeptFacts = z.infer<typeof KeptFacts>;

export type KeptBatch = { readonly facts: KeptFacts; readonly episodes: readonly Episode[] };

/** What each rank of a step has kept, in their order. */
export type KeptStep = {
  readonly ranks: readonly KeptBatch[];
  /** of the same group, which have kept nothing that is there */
  readonly missing: readonly number[];
  /** in the step's folder, of another batch */
  readonly strayFiles: readonly string[];
};

const folderOf = (step: number): string => `${mismatchFolder}/step-${String(step).padStart(6, "0")}`;

/** Its artifacts, in the order in which they are to be written (KB1). */
export function encodeKept(
  rank: number,
  facts: Omit<KeptFacts, "format" | "files">,
  episodes: readonly Episode[],
): { readonly name: string; readonly data: Uint8Array | string }[] {
  const folder = folderOf(facts.step);
  const files = inFiles(episodes).map((some, index) => {
    const name = `rank-${rank}-${index + 1}.safetensors`;
    return { name, data: encodeArrays(arraysOf(some)), some };
  });
  const listed = files.map(({ name, data, some }) => ({
    name,
    sha256: sha256Of(data),
    episodes: some.map(({ promptId, engine, finishReason, reward }) => ({
      promptId,
      ...(engine !== undefined && { engine }),
      finishReason,
      reward,
    })),
  }));
  const all: KeptFacts = { format: 1, ...facts, files: listed };
  return [
    ...files.map(({ name, data }) => ({ name: `${folder}/${name}`, data })),
    { name: `${folder}/rank-${rank}.json`, data: `${JSON.stringify(all)}\n` },
  ];
}

/** One that is larger than a file may be has one of its own, which whoever writes it is refused. */
function inFiles(episodes: readonly Episode[]): Episode[][] {
  const files: Episode[][] = [];
  let numBytes = Number.POSITIVE_INFINITY;
  for (const episode of episodes) {
    if (numBytes + bytesOf(episode) > mostFileBytes) {
      files.push([]);
      numBytes = 0;
    }
    files.at(-1)!.push(episode);
    numBytes += bytesOf(episode);
  }
  return files;
}

/** Numbers of tokens one episode after another, and of episodes. */
function arraysOf(episodes: readonly Episode[]) {
  const ints = (of: (episode: Episode) => Iterable<number>) =>
    Int32Array.from(episodes.flatMap((each) => [...of(each)]));
  const floats = (of: (episode: Episode) => Iterable<number>) =>
    Float32Array.from(episodes.flatMap((each) => [...of(each)]));
  return {
    lengths: Int32Array.from(episodes, ({ tokens }) => tokens.length),
    prompt_lengths: Int32Array.from(episodes, ({ promptLength }) => promptLength),
    temperatures: Float32Array.from(episodes, ({ temperature }) => temperature),
    tokens: ints(({ tokens }) => tokens),
    policy_versions: ints(({ policyVersions }) => policyVersions),
    sampler_logprobs: floats(({ logprobs }) => logprobs),
    // What nobody has rescored has none.
    trainer_logprobs: floats(
      ({ oldLogprobs, tokens }) => oldLogprobs ?? new Float32Array(tokens.length).fill(Number.NaN),
    ),
    rescored: Uint8Array.from(episodes, ({ oldLogprobs }) => Number(oldLogprobs !== undefined)),
    mask: floats(({ mask }) => mask),
  };
}

const sha256Of = (data: Uint8Array): string => createHash("sha256").update(data).digest("hex");

/** Steps of which a batch is kept, or was begun to be, in their order. */
export async function keptSteps(artifacts: string): Promise<number[]> {
  const entries = await readdir(join(artifacts, mismatchFolder), { withFileTypes: true }).catch(() => []);
  return entries
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => ({ name, step: Number(/^step-(\d+)$/.exec(name)?.[1]) }))
    .filter(({ name, step }) => Number.isSafeInteger(step) && name === basename(folderOf(step)))
    .map(({ step }) => step)
    .sort((a, b) => a - b);
}

/** The newest whole one, or else the newest of which some ranks are there. `passedOver`: newer ones, of which less is there. */
export async function newestKept(artifacts: string): Promise<{ step: number; passedOver: number[] } | undefined> {
  const found: { readonly step: number; readonly isWhole: boolean }[] = [];
  const steps = await keptSteps(artifacts);
  for (const step of steps.toReversed()) {
    const { ranks, missing } = await survey(artifacts, step);
    if (ranks.length > 0) found.push({ step, isWhole: missing.length === 0 });
    if (found.at(-1)?.isWhole) break;
  }
  const chosen = found.find(({ isWhole }) => isWhole) ?? found[0];
  return chosen && { step: chosen.step, passedOver: steps.filter((step) => step > chosen.step) };
}

/** Throws `recording.invalid` for what is cut or altered, and where nothing is there. */
export async function readKept(artifacts: string, step: number): Promise<KeptStep> {
  const { folder, ranks, missing, strayFiles } = await survey(artifacts, step);
  if (ranks.length === 0) refuse(folder, "holds no batch of this step that was written to its end");
  return { ranks: await Promise.all(ranks.map((facts) => readRank(folder, facts))), missing, strayFiles };
}

/** KB3: the batch that lacks fewest ranks, which is a whole one where there is any, since each rank has one file. */
async function survey(artifacts: string, step: number) {
  const folder = join(artifacts, folderOf(step));
  const names = await readdir(folder).catch((cause: Error) =>
    refuse(folder, `cannot be read: ${cause.message}`, cause),
  );
  const found = names
    .flatMap((name) => /^rank-(\d+)\.json$/.exec(name)?.[1] ?? [])
    .map(Number)
    .sort((a, b) => a - b);
  const batches = new Map<string, Map<number, KeptFacts>>();
  for (const rank of found) {
    const facts = await readFacts(join(folder, fileOf(rank)));
    // Each rank may have published for itself.
    const { worker, weightsId: _, numEpisodes: __, files: ___, ...common } = facts;
    const component = worker.slice(0, worker.lastIndexOf("/"));
    if (facts.step !== step || rank >= facts.numRanks || worker !== `${component}/${rank}`) continue;
    const key = JSON.stringify([component, common]);
    batches.set(key, (batches.get(key) ?? new Map<number, KeptFacts>()).set(rank, facts));
  }
  const [chosen] = [...batches.values()]
    .map((ranks) => ({ ranks, missing: missingIn(ranks) }))
    .sort((a, b) => a.missing.length - b.missing.length || b.ranks.size - a.ranks.size);
  return {
    folder,
    ranks: [...(chosen?.ranks.values() ?? [])],
    missing: chosen?.missing ?? [],
    strayFiles: found.filter((rank) => !chosen?.ranks.has(rank)).map(fileOf),
  };
}

function missingIn(ranks: ReadonlyMap<number, KeptFacts>): number[] {
  const [first] = ranks.values();
  return Array.from({ length: first?.numRanks ?? 0 }, (_, rank) => rank).filter((rank) => !ranks.has(rank));
}

const fileOf = (rank: number): string => `rank-${rank}.json`;

function refuse(path: string, what: string, cause?: unknown): never {
  const message = `'${path}' ${what}; the batch cannot be used: take that of another step, or copy the run's folder again`;
  throw new TreadleError("recording.invalid", message, { cause });
}

const read = (path: string): Promise<Buffer> =>
  readFile(path).catch((cause: Error) => refuse(path, `cannot be read: ${cause.message}`, cause));

async function readFacts(path: string): Promise<KeptFacts> {
  const text = await read(path);
  try {
    return KeptFacts.parse(JSON.parse(text.toString("utf8")));
  } catch (cause) {
    return refuse(path, "does not say what was kept", cause);
  }
}

async function readRank(folder: string, facts: KeptFacts): Promise<KeptBatch> {
  const episodes: Episode[] = [];
  for (const file of facts.files) {
    const path = join(folder, file.name);
    const data = await read(path);
    const found = sha256Of(data);
    if (found !== file.sha256) refuse(path, `has checksum '${found}' where '${file.sha256}' was written`);
    episodes.push(...episodesIn(data, file.episodes, (what, cause) => refuse(path, what, cause)));
  }
  return { facts, episodes };
}

/** KB2. */
function episodesIn(
  data: Uint8Array,
  told: KeptFacts["files"][number]["episodes"],
  refuse: (what: string, cause?: unknown) => never,
): Episode[] {
  const arrays = decodeArrays(data);
  const of = (name: string) => arrays.get(name) ?? refuse(`has no '${name}'`);
  const lengths = of("lengths");
  let start = 0;
  return told.map((each, at) => {
    const end = start + (lengths[at] ?? 0);
    const cut = (name: string) => of(name).slice(start, end);
    const { data: episode, error } = Episode.safeParse({
      ...each,
      promptLength: of("prompt_lengths")[at],
      temperature: of("temperatures")[at],
      tokens: cut("tokens"),
      mask: cut("mask"),
      policyVersions: cut("policy_versions"),
      logprobs: cut("sampler_logprobs"),
      ...(of("rescored")[at] === 1 && { oldLogprobs: cut("trainer_logprobs") }),
    });
    start = end;
    return episode ?? refuse(`has an episode that is none: ${error && z.prettifyError(error)}`);
  });
}
