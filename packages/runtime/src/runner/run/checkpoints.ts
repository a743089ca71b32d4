/** Checkpoints that a person may want later: the last few, and the best. Each is a folder with the state of each component. */
import { constants, cp, mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { ComponentName, type RuntimeConfig, TreadleError } from "@treadle/contracts";
import writeFileAtomic from "write-file-atomic";
import { z } from "zod";
import { guardDisk } from "../../author/guard-disk.ts";
import { openState } from "../../author/state/saved-state.ts";
import { folderSource, viewState } from "../../author/state/state-view.ts";

/** Components are parts of paths, and a note may have come from servers where others write. */
const CheckpointNote = z.object({ step: z.int(), score: z.number().nullable(), components: z.array(ComponentName) });
export type CheckpointNote = z.infer<typeof CheckpointNote>;

export const checkpointNote = "checkpoint.json";
const partial = ".partial";

/** When a checkpoint is made, and which are kept. */
type CheckpointPolicy = Pick<RuntimeConfig["checkpoints"], "everySteps" | "keepLast" | "keepBest" | "bestBy">;

export class Checkpoints {
  readonly #folder: string;
  readonly #policy: CheckpointPolicy;

  constructor(folder: string, policy: CheckpointPolicy) {
    this.#folder = folder;
    this.#policy = policy;
  }

  isDue(step: number): boolean {
    return step % this.#policy.everySteps === 0;
  }

  /**
   * Copies the states beside their place and renames the folder, then removes, and returns, what the policy does not keep. A
   * checkpoint that holds one of the states stays as long as the run goes on from it.
   */
  async write(
    step: number,
    states: Readonly<Record<string, string>>,
    score: number | undefined,
  ): Promise<{ readonly path: string; readonly removed: readonly CheckpointNote[] }> {
    const path = join(this.#folder, `step-${String(step).padStart(6, "0")}`);
    const beside = `${path}${partial}`;
    await this.#removePartial();
    await guardDisk(path, async () => {
      try {
        await mkdir(beside, { recursive: true, mode: 0o700 });
        for (const [component, folder] of Object.entries(states)) {
          // Without a second copy on the disk where the file system can share one.
          await cp(folder, join(beside, component), { recursive: true, mode: constants.COPYFILE_FICLONE });
        }
        const note: CheckpointNote = { step, score: score ?? null, components: Object.keys(states) };
        await writeFileAtomic(join(beside, checkpointNote), JSON.stringify(note), { mode: 0o600 });
        await rm(path, { recursive: true, force: true });
        await rename(beside, path);
      } catch (error) {
        await this.#removePartial().catch(() => {});
        throw error;
      }
    });
    return { path, removed: await this.#prune(new Set(Object.values(states).map(dirname))) };
  }

  async list(): Promise<(CheckpointNote & { path: string })[]> {
    const names = (await readdir(this.#folder).catch(() => [])).filter((name) => /^step-\d+$/.test(name)).sort();
    const notes = await Promise.all(
      names.map(async (name) => {
        const path = join(this.#folder, name);
        try {
          return { ...CheckpointNote.parse(JSON.parse(await readFile(join(path, checkpointNote), "utf8"))), path };
        } catch {
          return undefined; // without its note a checkpoint cannot be told from any other folder
        }
      }),
    );
    return notes.filter((note) => note !== undefined);
  }

  /** What a runner that was killed, or a full disk, left unfinished: only one runner writes here. */
  async #removePartial(): Promise<void> {
    const names = await readdir(this.#folder).catch(() => []);
    for (const name of names.filter((each) => each.endsWith(partial))) {
      await rm(join(this.#folder, name), { recursive: true, force: true });
    }
  }

  async #prune(inUse: ReadonlySet<string>): Promise<CheckpointNote[]> {
    const notes = await this.list();
    const kept = keptCheckpoints(notes, this.#policy);
    const removed = notes.filter(({ step, path }) => !kept.has(step) && !inUse.has(path));
    for (const { path } of removed) await rm(path, { recursive: true });
    return removed;
  }
}

/** Which of the kept ones is meant: the last, the best, or that of a step. Throws `checkpoint.missing`. */
export function chooseCheckpoint<T extends CheckpointNote>(notes: readonly T[], which: "best" | "last" | number): T {
  const refuse = (what: string): never => {
    const steps = notes.map(({ step, score }) => (score === null ? `${step}` : `${step} (score ${score})`));
    const remedy = steps.length === 0 ? "let the run make one" : `name one that is kept: ${steps.join(", ")}`;
    throw new TreadleError("checkpoint.missing", `${what}; ${remedy}`);
  };
  if (which === "last")
    return notes.toSorted((a, b) => a.step - b.step).at(-1) ?? refuse("the run has no checkpoint yet");
  if (typeof which === "number")
    return notes.find(({ step }) => step === which) ?? refuse(`the run keeps no checkpoint of step '${which}'`);
  const [best] = keptCheckpoints(notes, { keepLast: 0, keepBest: 1 });
  return notes.find(({ step }) => step === best) ?? refuse("no kept checkpoint has a score, so none is the best");
}

/**
 * Where those of a component's files are, of its first rank, whose names are wanted. Throws `checkpoint.missing` where none is, and
 * `checkpoint.corrupt` unless the state is whole: those files are read to their ends, as a restore reads them (MF2).
 */
export async function filesInCheckpoint(
  { path, step, components }: CheckpointNote & { readonly path: string },
  component: string,
  isWanted: (name: string) => boolean,
): Promise<string[]> {
  const refuse = (what: string, remedy: string): never => {
    throw new TreadleError("checkpoint.missing", `the checkpoint of step '${step}' ${what}; ${remedy}`);
  };
  if (!components.includes(component))
    refuse(`has no component '${component}'`, `name one that it has: ${components.join(", ") || "none"}`);
  const folder = join(path, component);
  const manifest = await openState(folder);
  const numRanks = manifest.ranks.length;
  const files = (manifest.ranks[0] ?? []).filter(({ name }) => isWanted(name));
  if (files.length === 0) refuse(`has no model of '${component}'`, "name a component that trains a model");
  const part = viewState(folderSource(folder, manifest), { worker: component, rank: 0, numRanks }).part(0);
  const paths: string[] = [];
  for (const { name } of files) paths.push(await part.stream(name).checkedPath());
  return paths;
}

/** What to say when a checkpoint goes that could not be the best because nothing says how good it is; undefined when none did. */
export function unscoredWarning(
  removed: readonly CheckpointNote[],
  { bestBy, keepBest }: Pick<RuntimeConfig["checkpoints"], "bestBy" | "keepBest">,
  lastMetrics: Readonly<Record<string, number>>,
): string | undefined {
  const unscored = removed.find(({ score }) => score === null);
  if (!unscored || keepBest === 0) return undefined;
  const reported = Object.keys(lastMetrics).map((name) => `'${name}'`);
  return (
    `the checkpoint of step '${unscored.step}' is removed and was never compared with others: its step did not report ` +
    `'${bestBy}' (checkpoints.bestBy); the last step reported ${reported.join(", ") || "nothing"}; set checkpoints.bestBy ` +
    `to what every step of checkpoints.everySteps reports, or checkpoints.keepBest to 0`
  );
}

/** The steps whose checkpoints stay: the last `keepLast` and the `keepBest` with the highest score, later ones first among equals. */
export function keptCheckpoints(
  notes: readonly CheckpointNote[],
  policy: { readonly keepLast: number; readonly keepBest: number },
): Set<number> {
  const last = notes.toSorted((a, b) => b.step - a.step).slice(0, policy.keepLast);
  const best = notes
    .filter((note) => note.score !== null)
    .sort((a, b) => (b.score as number) - (a.score as number) || b.step - a.step)
    .slice(0, policy.keepBest);
  return new Set([...last, ...best].map((note) => note.step));
}
