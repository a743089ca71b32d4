/**
 * The batch of a mismatch alarm, as it lies in a run's artifacts: `mismatch/step-000012/rank-0.json`, and the files that it lists.
 *
 * KB1 a batch whose JSON is there is whole: that is written last, and has the SHA-256 of each file.
 * KB2 what is read is what the actor had: ids, masks, versions, and both log-probabilities, bit for bit.
 */
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { Episode, FinishReason, TreadleError } from "@treadle/contracts";
import { decodeArrays, encodeArrays } from "@treadle/engines";
import { z } from "zod";

export const mismatchFolder = "mismatch";
/** Of a file, which artifacts bound by 8 MiB. */
const mostFileBytes = 6 * 2 ** 20;
/** Of a token in files; what an episode takes beside its tokens there and in the JSON is about the rest. */
const tokenBytes = 17;
const episodeBytes = 256;

export const bytesOf = ({ tokens, promptId }: Episode): number =>
  tokenBytes * tokens.length + episodeBytes + promptId.length;

export const KeptFacts = z.strictObject({
  format: z.literal(1),
  step: z.int().nonnegative(),
  worker: z.string(),
  numRanks: z.int().positive(),
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
    mask: Uint8Array.from(episodes.flatMap(({ mask }) => [...mask])),
  };
}

const sha256Of = (data: Uint8Array): string => createHash("sha256").update(data).digest("hex");

/** Steps of which a batch is kept, in their order. */
export async function keptSteps(artifacts: string): Promise<number[]> {
  const names = await readdir(join(artifacts, mismatchFolder)).catch(() => []);
  return names
    .flatMap((name) => /^step-(\d+)$/.exec(name)?.[1] ?? [])
    .map(Number)
    .sort((a, b) => a - b);
}

/** What each rank has kept of a step. Throws `recording.invalid` for what is missing, cut or altered. */
export async function readKept(artifacts: string, step: number): Promise<KeptBatch[]> {
  const folder = join(artifacts, folderOf(step));
  const ranks = (await readdir(folder)).filter((name) => /^rank-\d+\.json$/.test(name));
  const numberOf = (name: string) => Number(/\d+/.exec(name)?.[0]);
  return Promise.all(ranks.sort((a, b) => numberOf(a) - numberOf(b)).map((name) => readRank(folder, name)));
}

async function readRank(folder: string, name: string): Promise<KeptBatch> {
  const refuse = (file: string, what: string, cause?: unknown): never => {
    const message = `'${join(folder, file)}' ${what}; the batch cannot be used: take that of another step, or copy the run's folder again`;
    throw new TreadleError("recording.invalid", message, { cause });
  };
  const read = (file: string) =>
    readFile(join(folder, file)).catch((cause: Error) => refuse(file, `cannot be read: ${cause.message}`, cause));
  const text = await read(name);
  let facts: KeptFacts;
  try {
    facts = KeptFacts.parse(JSON.parse(text.toString("utf8")));
  } catch (cause) {
    return refuse(name, "does not say what was kept", cause);
  }
  const episodes: Episode[] = [];
  for (const file of facts.files) {
    const data = await read(file.name);
    const found = sha256Of(data);
    if (found !== file.sha256) refuse(file.name, `has checksum '${found}' where '${file.sha256}' was written`);
    episodes.push(...episodesIn(data, file.episodes, (what, cause) => refuse(file.name, what, cause)));
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
      mask: Float32Array.from(cut("mask")),
      policyVersions: cut("policy_versions"),
      logprobs: cut("sampler_logprobs"),
      ...(of("rescored")[at] === 1 && { oldLogprobs: cut("trainer_logprobs") }),
    });
    start = end;
    return episode ?? refuse(`has an episode that is none: ${error && z.prettifyError(error)}`);
  });
}
