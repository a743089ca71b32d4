/**
 * Modules of a project that a configuration names, each with a function that creates something: an engine, a tracker, a tokenizer, a dataset.
 *
 * PM1 what a module exports and returns is checked before it is used; an error names the key that names the module, what was found, and
 *    what to do.
 */
import { TreadleError, thrownText } from "./errors.ts";
import { inTime } from "./time-limit.ts";

export type ProjectModuleOptions = {
  /** that names it, as `engine.module` */
  readonly key: string;
  /** whose key that is, where several have it, as `'rollout'` */
  readonly of?: string | undefined;
  /** by its path from the project's root */
  readonly module: string;
  readonly load: (module: string) => Promise<Readonly<Record<string, unknown>>>;
};

/** What it is to return: its name in errors, and the function that does so. */
export type Created = {
  readonly creator: string;
  readonly what: string;
  /** that loading and creating may take, by the configuration's `key`; without it, whoever calls bounds it */
  readonly within?: { readonly key: string; readonly timeoutMs: number };
};

export class ProjectModule {
  readonly #options: ProjectModuleOptions;

  constructor(options: ProjectModuleOptions) {
    this.#options = options;
  }

  /** `engine.module of 'rollout' is 'own.ts', ${what}` */
  refuse(what: string): TreadleError {
    return new TreadleError("config.invalid", `${this.#named}, ${what}`);
  }

  /**
   * What its function returns for this context, an object. Throws `worker.load-failed` where it cannot be loaded, `config.invalid` where it
   * exports no such function, or one that returns none or not in time, and what the function throws (PM1).
   */
  async create(created: Created, context: object): Promise<object> {
    const { creator, what, within } = created;
    if (within === undefined) return this.#create(created, context);
    const { key, timeoutMs } = within;
    const remedy = `let it return sooner, or raise ${key}`;
    const late = this.refuse(`whose '${creator}' has not returned the ${what} within ${timeoutMs} ms; ${remedy}`);
    return inTime(this.#create(created, context), timeoutMs, late);
  }

  async #create({ creator, what }: Created, context: object): Promise<object> {
    const { key, module, load } = this.#options;
    const exports = await load(module).catch((cause: unknown) => {
      const remedy = `set ${key} to a file in JavaScript or TypeScript that loads, by its path from the project's root`;
      throw new TreadleError("worker.load-failed", `${this.#named}: ${thrownText(cause)}; ${remedy}`, { cause });
    });
    const create = exports[creator];
    if (typeof create !== "function")
      throw this.refuse(`which exports no function '${creator}'; export one that returns the ${what}`);
    const created = await (async (): Promise<unknown> => create(context))().catch((cause: unknown) => {
      if (cause instanceof Error) throw cause;
      throw this.refuse(`whose '${creator}' threw '${thrownText(cause)}'; throw an Error that says what it lacks`);
    });
    if (typeof created === "object" && created !== null) return created;
    throw this.refuse(
      `whose '${creator}' returned '${created === null ? "null" : typeof created}'; return the ${what}`,
    );
  }

  /** Throws `config.invalid` unless `created` has all of these methods; `see`: what lists them. */
  check(
    created: object,
    methods: readonly string[],
    { what, see }: { readonly what: string; readonly see: string },
  ): void {
    const lacks = methods.filter((name) => typeof (created as Record<string, unknown>)[name] !== "function");
    if (lacks.length > 0) throw this.refuse(`whose ${what} lacks '${lacks.join("', '")}'${see}`);
  }

  get #named(): string {
    const { key, of, module } = this.#options;
    return `${key}${of === undefined ? "" : ` of ${of}`} is '${module}'`;
  }
}
