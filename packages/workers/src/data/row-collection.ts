/** Which rows of all files count, and for what. */
import { createHash } from "node:crypto";
import { realpathSync } from "node:fs";
import { isAbsolute, relative, resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { hashString, type Tokenizer } from "@treadle/learning";
import type { WorkflowContext } from "@treadle/runtime";
import type { FileDataConfig } from "./data-config.ts";
import { invalid, type Row, readRows } from "./read-rows.ts";
import { type Content, contentOf, described, keyOf, tokensOf } from "./row-content.ts";

export type DatasetOptions = {
  readonly config: FileDataConfig;
  readonly tokenizer: Tokenizer;
  /** of the longest prompt */
  readonly maxPromptTokens: number;
  readonly seed: number;
} & Pick<WorkflowContext<never>, "projectRoot" | "once" | "warn">;

export type SetName = "training" | "validation" | "heldOut";
export type Kept = Content & { readonly id: string };

const rowOverheadBytes = 256;
/** Rows that are wrong are named up to so many. */
const maxProblems = 5;

/** Decides of each row whether it counts, and for what. */
export class RowCollection {
  readonly sets: Record<SetName, Buffer[]> = { training: [], validation: [], heldOut: [] };
  readonly left = { equal: 0, tooLong: 0, judged: 0 };
  readonly #options: DatasetOptions;
  readonly #hash = createHash("sha256");
  /** where each row stands, by what it says */
  readonly #rows = new Set<string>();
  readonly #ids = new Map<string, string>();
  readonly #judged = new Map<string, SetName>();
  readonly #problems: string[] = [];
  #sizeBytes = 0;
  #digest: string | undefined;

  constructor(options: DatasetOptions) {
    this.#options = options;
  }

  /** Of everything that was kept, in order. */
  get digest(): string {
    this.#digest ??= this.#hash.digest("hex");
    return this.#digest;
  }

  /** By a hash of the prompt, where no file says. */
  setOf(prompt: string): SetName {
    const { split, heldOut, validation, heldOutFraction, validationFraction } = this.#options.config;
    const share = hashString(`${split} ${prompt}`) / 2 ** 32;
    const upTo = heldOut === undefined ? heldOutFraction : 0;
    if (share < upTo) return "heldOut";
    return share < upTo + (validation === undefined ? validationFraction : 0) ? "validation" : "training";
  }

  async read(file: string, setOf: (prompt: string) => SetName): Promise<void> {
    let numRows = 0;
    for await (const row of readRows(this.#pathOf(file), file)) {
      numRows += 1;
      this.#add(row, setOf);
    }
    if (numRows === 0)
      throw invalid(`'${file}' has no row: allowed is at least one; fill it, or leave it out of 'data'`);
  }

  /** Throws for what was wrong with rows, all of it at once. */
  check(): void {
    if (this.#problems.length > 0) throw invalid(this.#problems.join("; "));
    if (this.sets.training.length > 0) return;
    const { equal, tooLong, judged } = this.left;
    throw invalid(
      `no training row is left of 'data.train': '${equal}' were equal, '${tooLong}' too long, '${judged}' have prompts that judge; name files with others, or lower data.heldOutFraction and data.validationFraction`,
    );
  }

  #add({ value, where }: Row, setOf: (prompt: string) => SetName): void {
    let content: Content;
    try {
      content = contentOf(value, where, this.#options.config);
      if (!this.#fits(content, where)) return;
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
      this.#problems.push(error.message);
      if (this.#problems.length === maxProblems) this.check();
      return;
    }
    const prompt = keyOf([content.text, content.messages, content.tools]);
    const key = keyOf([prompt, content.answer, content.metadata]);
    const id = this.#idOf(value, where, key);
    if (id === undefined) return;
    const set = setOf(prompt);
    const judges = this.#judged.get(prompt);
    if (judges !== undefined && judges !== set) {
      this.left.judged += 1; // DT1
      return;
    }
    if (this.#rows.has(key)) {
      this.left.equal += 1;
      return;
    }
    this.#rows.add(key);
    if (set !== "training") this.#judged.set(prompt, set);
    this.#keep(set, { ...content, id });
  }

  #keep(set: SetName, row: Kept): void {
    const bytes = Buffer.from(JSON.stringify(row));
    const { maxMiB } = this.#options.config;
    this.#sizeBytes += bytes.length + rowOverheadBytes;
    if (this.#sizeBytes > maxMiB * 2 ** 20) {
      throw invalid(
        `the rows of 'data' are more than '${maxMiB}' MiB, which data.maxMiB allows: raise it to what the machine has, or name fewer files`,
      );
    }
    this.#hash.update(set).update(bytes);
    this.sets[set].push(bytes);
  }

  /** Undefined for an id that another row has. */
  #idOf(value: Record<string, unknown>, where: string, key: string): string | undefined {
    const field = this.#options.config.fields.id;
    if (field === undefined) return key.slice(0, 16);
    const given = value[field];
    if ((typeof given !== "string" || given === "") && typeof given !== "number") {
      this.#problems.push(
        `${where}: ${described(field, given)}, its id: allowed is text or a number; give each row one`,
      );
      return undefined;
    }
    const id = `${given}`;
    const known = this.#ids.get(id);
    this.#ids.set(id, key);
    if (known === undefined || known === key) return id;
    this.#problems.push(
      `${where}: another row has its id '${id}' in '${field}', and says something else; give each row its own`,
    );
    return undefined;
  }

  #fits(content: Content, where: string): boolean {
    const { config, maxPromptTokens } = this.#options;
    const length = tokensOf(content, this.#options, where).tokens.length;
    if (length === 0) throw invalid(`${where}: its prompt has no token: allowed is at least one`);
    if (length <= maxPromptTokens) return true;
    if (config.tooLong === "drop") {
      this.left.tooLong += 1;
      return false;
    }
    throw invalid(
      `${where}: its prompt has '${length}' tokens: allowed is '${maxPromptTokens}', the model's context less data.maxAnswerTokens; shorten it, raise the context, or set data.tooLong to 'drop'`,
    );
  }

  #pathOf(file: string): string {
    const { projectRoot } = this.#options;
    const path = resolve(projectRoot, file);
    if (isBelow(path, projectRoot) && isBelow(real(path), real(projectRoot))) return path;
    throw invalid(`'${file}' of 'data' is not below the project's root '${projectRoot}': move or copy it there`);
  }
}

const isBelow = (path: string, folder: string): boolean => {
  const way = relative(folder, path);
  return way !== "" && !way.startsWith("..") && !isAbsolute(way);
};

/** Where links lead; the path itself where nothing is there. */
function real(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return path;
  }
}
