/**
 * Prompts from files, in memory as JSON beyond JavaScript's heap.
 *
 * DT1 training, validation and held-out rows share no prompt; equal rows are one.
 * DT2 the prompts of a step depend on the files, the seed and the step alone, so the position of a run is its step: a resumed
 *     run goes on where it was, and with other files it is refused.
 * DT3 each epoch has every training row once, in an order of its own.
 */
import type { Prompt } from "@treadle/contracts";
import { createRandom, type PromptTask, type Random } from "@treadle/learning";
import type { WorkflowContext } from "@treadle/runtime";
import type { DataConfig, FileDataConfig } from "./data-config.ts";
import { openModuleDataset } from "./module-dataset.ts";
import type { PromptSource } from "./prompt-source.ts";
import { invalid } from "./read-rows.ts";
import { type DatasetOptions, type Kept, RowCollection, type SetName } from "./row-collection.ts";
import { tokensOf } from "./row-content.ts";
import { checkSameData } from "./same-data.ts";

export interface Dataset extends PromptTask, AsyncDisposable {
  readonly rows: Readonly<Record<SetName, number>>;
  /** rows that were left out, by why */
  readonly left: { readonly equal: number; readonly tooLong: number; readonly judged: number };
}

/** Of files or of a module, which `loadModule` of the workflow loads. */
export type PromptSourceOptions = Omit<DatasetOptions, "config"> & {
  readonly config: DataConfig;
} & Pick<WorkflowContext<never>, "loadModule">;

/**
 * Reads all files and checks every row before it returns; of a module, it checks what that exports, and every row that it draws. Throws
 * `data.invalid`, which names file, line and remedy.
 */
export async function openDataset(options: DatasetOptions): Promise<Dataset>;
export async function openDataset(options: PromptSourceOptions): Promise<PromptSource & AsyncDisposable>;
export async function openDataset(
  options: DatasetOptions | PromptSourceOptions,
): Promise<PromptSource & AsyncDisposable> {
  const { config } = options;
  if (config.kind !== "module") return openFiles({ ...options, config });
  return openModuleDataset({ ...(options as PromptSourceOptions), config });
}

async function openFiles(options: DatasetOptions): Promise<Dataset> {
  const rows = new RowCollection(options);
  const { train, validation, heldOut } = options.config;
  // What judges comes first, so that a training row with one of its prompts is known as such.
  for (const file of filesOf(heldOut)) await rows.read(file, () => "heldOut");
  for (const file of filesOf(validation)) await rows.read(file, () => "validation");
  for (const file of filesOf(train)) await rows.read(file, (prompt) => rows.setOf(prompt));
  rows.check();
  await checkSameData(rows.digest, options.once); // DT2
  const { equal, tooLong, judged } = rows.left;
  if (tooLong + judged > 0) {
    options.warn(
      `of 'data', '${tooLong}' rows are left out as too long, and '${judged}' whose prompts are in a set that judges; '${equal}' are equal to others`,
    );
  }
  return new FileDataset(options, rows);
}

const filesOf = (files: FileDataConfig["train"] | undefined): readonly string[] =>
  files === undefined ? [] : [files].flat();

class FileDataset implements Dataset {
  readonly left: Dataset["left"];
  readonly rows: Dataset["rows"];
  readonly #options: DatasetOptions;
  readonly #sets: Readonly<Record<SetName, readonly Buffer[]>>;
  #order: { readonly epoch: number; readonly rows: Uint32Array } | undefined;

  constructor(options: DatasetOptions, { sets, left }: RowCollection) {
    this.#options = options;
    this.#sets = sets;
    this.left = left;
    const { training, validation, heldOut } = sets;
    this.rows = { training: training.length, validation: validation.length, heldOut: heldOut.length };
  }

  problemsAt(step: number, count: number): Prompt[] {
    const { training } = this.#sets;
    return Array.from({ length: count }, (_, index) => {
      const position = (step - 1) * count + index; // DT2
      const epoch = Math.floor(position / training.length);
      const row = this.#orderOf(epoch)[position % training.length] as number;
      return this.#promptOf(training[row] as Buffer, `@${step}.${index}`);
    });
  }

  heldOut(count: number): Prompt[] {
    return this.#different("heldOut", createRandom("data/held-out"), count, "held-out");
  }

  validation(count: number): Prompt[] {
    return this.#different("validation", createRandom("data/validation"), count, "validation");
  }

  demonstrated(count: number): Prompt[] {
    const random = createRandom(this.#options.seed).split("data/demonstrated");
    const prompts = this.#different("training", random, count, "demonstrated");
    const open = prompts.find(({ answer }) => answer === undefined);
    if (open === undefined) return prompts;
    throw invalid(`row '${open.id}' has no answer to imitate: set data.fields.answer, or set imitation to null`);
  }

  /** All is in memory. */
  async [Symbol.asyncDispose](): Promise<void> {}

  /** DT3: a shuffle of its own. */
  #orderOf(epoch: number): Uint32Array {
    if (this.#order?.epoch !== epoch) {
      const rows = Uint32Array.from({ length: this.#sets.training.length }, (_, row) => row);
      const random = createRandom(this.#options.seed).split("data/training").split(epoch);
      for (let last = rows.length - 1; last > 0; last--) {
        const other = random.integer(last + 1);
        [rows[last], rows[other]] = [rows[other] as number, rows[last] as number];
      }
      this.#order = { epoch, rows };
    }
    return this.#order.rows;
  }

  #different(set: SetName, random: Random, count: number, name: string): Prompt[] {
    const rows = this.#sets[set];
    if (count > rows.length) {
      throw invalid(
        `'${count}' ${name} rows are asked for, and 'data' has '${rows.length}': ask for fewer, or give it more by data.${set === "training" ? "train" : `${set} or data.${set}Fraction`}`,
      );
    }
    const chosen = random.shuffle(rows.map((_, index) => index)).slice(0, count);
    return chosen.map((row, index) => this.#promptOf(rows[row] as Buffer, `@${name}.${index}`));
  }

  #promptOf(bytes: Buffer, occurrence: string): Prompt {
    const { id, tools, ...row } = JSON.parse(bytes.toString()) as Kept;
    return { ...row, ...tokensOf({ ...row, tools }, this.#options, `row '${id}'`), id: `${id}${occurrence}` };
  }
}
