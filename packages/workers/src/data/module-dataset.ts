/**
 * Prompts from a module of the project, which exports `createDataset` and says itself where it has come to.
 *
 * - MD1 a draw goes on at the position that the one before it has left, which the journal has with each step (CI4 of the runtime): of what
 *   the module goes through nothing is left out, and nothing is drawn again but what no committed step was given
 * - MD2 each row is checked as a file's is, before a step has any of its draw; what the module answers late, wrong or not at all ends the
 *   run, and says which draw that was
 * - MD3 a resumed run draws from the module and with the settings that it began with: to others its position says nothing, so they are
 *   refused
 */
import { ProjectModule, type Prompt, TreadleError, thrownText } from "@treadle/contracts";
import { inTime } from "@treadle/contracts/time-limit";
import type { Tokenizer } from "@treadle/learning";
import type { Drawn, Position, WorkflowContext } from "@treadle/runtime";
import type { ModuleDataConfig } from "./data-config.ts";
import { jsonOf } from "./json-of-row.ts";
import type { PromptSource } from "./prompt-source.ts";
import { invalid, maxLineBytes, shortened } from "./read-rows.ts";
import { contentOf, described, keyOf, tokensOf } from "./row-content.ts";
import { checkSameData } from "./same-data.ts";

/** As a line of a JSONL file has it; `data.fields` says how its fields are called. */
export type DatasetRow = Readonly<Record<string, unknown>>;

/** So many training rows, and where the next draw goes on. */
export type DrawnRows = { readonly rows: readonly DatasetRow[]; readonly position: Position };

type Awaitable<T> = T | Promise<T>;

/**
 * A dataset of the project's own. It may keep nothing that decides what it answers: after a crash it is made again, and asked for what no
 * committed step was given, from the position that the last one has left.
 */
export type OwnDataset = {
  /**
   * The next `count` training rows from a position on, undefined at the beginning; where its rows end, it begins again. The position it
   * returns is JSON of at most 64 KiB.
   */
  draw(position: Position | undefined, count: number): Awaitable<DrawnRows>;
  /** So many different rows that judge, and choose nothing; the same ones whenever it is asked. */
  heldOut(count: number): Awaitable<readonly DatasetRow[]>;
  /** Others, which choose among policies. */
  validation(count: number): Awaitable<readonly DatasetRow[]>;
  /** Training rows with an answer to imitate; where it is missing, nothing can be imitated. */
  demonstrated?(count: number): Awaitable<readonly DatasetRow[]>;
  /** At the end of the run, whichever that is. */
  close?(): Awaitable<void>;
};

/** What a module's `createDataset` is told. */
export type DatasetContext = {
  readonly settings: ModuleDataConfig["settings"];
  /** of the run */
  readonly seed: number;
  /** by it, a dataset leaves out what is too long */
  readonly tokenizer: Tokenizer;
  readonly maxPromptTokens: number;
  readonly projectRoot: string;
  readonly warn: (message: string) => void;
};

/** What a module exports. It runs in the runner's process. */
export type CreateDataset = (context: DatasetContext) => Awaitable<OwnDataset>;

export type ModuleDatasetOptions = {
  readonly config: ModuleDataConfig;
} & Omit<DatasetContext, "settings"> &
  Pick<WorkflowContext<never>, "loadModule" | "once">;

export async function openModuleDataset(options: ModuleDatasetOptions): Promise<ModuleDataset> {
  const { config, loadModule, once, seed, tokenizer, maxPromptTokens, projectRoot, warn } = options;
  const { module, settings, timeoutMs } = config;
  const own = new ProjectModule({ key: "data.module", module, load: loadModule });
  const context: DatasetContext = { settings, seed, tokenizer, maxPromptTokens, projectRoot, warn };
  const within = { key: "data.timeoutMs", timeoutMs };
  const dataset = await own.create({ creator: "createDataset", what: "dataset", within }, context);
  own.check(dataset, ["draw", "heldOut", "validation"], {
    what: "dataset",
    see: "; see OwnDataset of treadle/workers",
  });
  const source = new ModuleDataset(options, dataset as OwnDataset);
  try {
    await checkSameData({ kind: "module", module, settings }, once); // MD3
  } catch (error) {
    await source[Symbol.asyncDispose]();
    throw error;
  }
  return source;
}

class ModuleDataset implements PromptSource, AsyncDisposable {
  readonly #options: ModuleDatasetOptions;
  readonly #own: OwnDataset;
  /** what judges, by its prompt */
  readonly #judging = new Set<string>();
  #hasWarned = false;

  constructor(options: ModuleDatasetOptions, own: OwnDataset) {
    this.#options = options;
    this.#own = own;
  }

  async problemsAt(round: number, count: number, position: Position | undefined): Promise<Drawn<Prompt>> {
    const what = `draw of round ${round}`;
    const drawn: unknown = await this.#asked(what, () => this.#own.draw(position, count));
    if (typeof drawn !== "object" || drawn === null || !("rows" in drawn) || !("position" in drawn))
      throw this.#invalid(`${what} gave no rows with a position: return { rows, position }`);
    const { rows, position: next } = drawn as DrawnRows;
    const items = this.#promptsOf(rows, count, what, (index) => `@${round}.${index}`);
    if (next === undefined)
      throw this.#invalid(
        `${what} has the position 'undefined': say where the next draw goes on, such as { row: 256 }`,
      );
    return { items, position: next };
  }

  async heldOut(count: number): Promise<Prompt[]> {
    return this.#judgingRows("held-out", count, () => this.#own.heldOut(count));
  }

  async validation(count: number): Promise<Prompt[]> {
    return this.#judgingRows("validation", count, () => this.#own.validation(count));
  }

  async demonstrated(count: number): Promise<Prompt[]> {
    if (typeof this.#own.demonstrated !== "function")
      throw this.#invalid(
        `it has no 'demonstrated', and '${count}' rows are to be imitated: add it, or set imitation to null`,
      );
    const rows = await this.#asked("demonstrated", () => this.#own.demonstrated?.(count));
    const prompts = this.#promptsOf(rows, count, "demonstrated", (index) => `@demonstrated.${index}`);
    const open = prompts.find(({ answer }) => answer === undefined);
    if (open === undefined) return prompts;
    throw this.#invalid(`row '${open.id}' has no answer to imitate: set data.fields.answer, or set imitation to null`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#asked("close", () => this.#own.close?.()).catch((error: Error) => this.#options.warn(error.message));
  }

  async #judgingRows(name: string, count: number, ask: () => unknown): Promise<Prompt[]> {
    const rows = await this.#asked(name, ask);
    const prompts = this.#promptsOf(rows, count, name, (index) => `@${name}.${index}`);
    for (const prompt of prompts) this.#judging.add(promptKey(prompt));
    return prompts;
  }

  /** MD2 */
  #promptsOf(rows: unknown, count: number, what: string, occurrence: (index: number) => string): Prompt[] {
    const isTraining = what.startsWith("draw");
    if (!Array.isArray(rows) || rows.length !== count) {
      const given = Array.isArray(rows) ? `'${rows.length}' rows` : `'${rows === null ? "null" : typeof rows}'`;
      const remedy = isTraining ? "where its rows end, begin again" : "ask for fewer, or give it more";
      throw this.#invalid(`${what} gave ${given} where '${count}' were asked for: give as many; ${remedy}`);
    }
    const prompts = rows.map((row, index) => this.#promptOf(row, `row ${index} of ${what}`, occurrence(index)));
    const seen = isTraining ? prompts.find((prompt) => this.#judging.has(promptKey(prompt))) : undefined;
    if (seen && !this.#hasWarned) {
      this.#hasWarned = true;
      this.#options.warn(
        `${this.#name}: training row '${seen.id}' has a prompt that judges, so accuracy counts what was learnt by heart; keep the sets apart`,
      );
    }
    return prompts;
  }

  #promptOf(given: unknown, row: string, occurrence: string): Prompt {
    const { config, maxPromptTokens } = this.#options;
    const where = `${this.#name}: ${row}`;
    const isObject = typeof given === "object" && given !== null && !Array.isArray(given);
    if (!isObject) throw invalid(`${where} is '${nameOf(given)}': allowed is an object with the fields of a row`);
    const text = jsonOf(given);
    if (typeof text !== "string") {
      const { at, value, what } = text;
      const shown = typeof value === "object" ? nameOf(value) : shortened(String(value));
      throw invalid(
        `${where} ${at === "" ? "is" : `has '${shown}' at '${at}',`} ${what}, which JSON has not: give it text, a finite number, a boolean, null, or lists and objects of these`,
      );
    }
    if (text.length > maxLineBytes)
      throw invalid(
        `${where} has '${text.length}' characters, '${shortened(text)}': allowed are '${maxLineBytes}'; give it less`,
      );
    const value = JSON.parse(text) as Record<string, unknown>;
    const content = contentOf(value, where, config);
    const { tools, ...kept } = content;
    const made = tokensOf(content, this.#options, where);
    const length = made.tokens.length;
    if (length === 0 || length > maxPromptTokens)
      throw invalid(
        `${where}: its prompt has '${length}' tokens: allowed is 1 to '${maxPromptTokens}', the model's context less data.maxAnswerTokens; let 'createDataset', which is told maxPromptTokens and the tokenizer, leave it out`,
      );
    return { ...kept, ...made, id: `${this.#idOf(value, where)}${occurrence}` };
  }

  #idOf(value: Record<string, unknown>, where: string): string {
    const field = this.#options.config.fields.id;
    if (field === undefined) return keyOf(value).slice(0, 16);
    const given = value[field];
    if ((typeof given === "string" && given !== "") || typeof given === "number") return `${given}`;
    throw invalid(`${where}: ${described(field, given)}, its id: allowed is text or a number; give each row one`);
  }

  /** MD2 */
  async #asked(what: string, ask: () => unknown): Promise<unknown> {
    const { timeoutMs } = this.#options.config;
    const late = this.#invalid(
      `${what} has not answered within ${timeoutMs} ms: let it answer sooner, or raise data.timeoutMs`,
    );
    const asking = (async (): Promise<unknown> => ask())().catch((cause: unknown) => {
      const why = cause instanceof Error ? cause.message : `it threw '${thrownText(cause)}'`;
      throw new TreadleError("data.invalid", `${this.#name}: ${what} failed: ${why}`, { cause });
    });
    return inTime(asking, timeoutMs, late);
  }

  get #name(): string {
    return `the dataset of '${this.#options.config.module}'`;
  }

  #invalid(what: string): TreadleError {
    return invalid(`${this.#name}: ${what}`);
  }
}

const promptKey = ({ text, messages }: Prompt): string => keyOf([text, messages]);
const nameOf = (value: unknown): string => (value === null ? "null" : Array.isArray(value) ? "a list" : typeof value);
