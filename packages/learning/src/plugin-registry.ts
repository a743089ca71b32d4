import { TreadleError } from "@treadle/contracts";
import { parseName } from "./config.ts";

/** One kind of something: makes it from its part of the configuration, which it validates itself (see `parseConfig`). */
export type Plugin<Made> = {
  readonly name: string;
  create(config: unknown, path: string): Made;
};

/** Plugins by name. Immutable: a registry with more of them is made with `with`. */
export class PluginRegistry<Made> {
  readonly kind: string;
  readonly #plugins: ReadonlyMap<string, Plugin<Made>>;

  /** `kind` is what a plugin makes, and where its configuration stands unless `create` is told otherwise. */
  constructor(kind: string, plugins: readonly Plugin<Made>[]) {
    this.kind = kind;
    this.#plugins = new Map(plugins.map((plugin) => [plugin.name, plugin]));
    if (this.#plugins.size !== plugins.length) {
      const names = plugins.map((plugin) => plugin.name);
      const twice = names.find((name, index) => names.indexOf(name) !== index);
      throw new TreadleError("config.invalid", `${kind} '${twice}' is registered twice: allowed is one plugin a name`);
    }
  }

  get names(): string[] {
    return [...this.#plugins.keys()];
  }

  with(...plugins: readonly Plugin<Made>[]): PluginRegistry<Made> {
    return new PluginRegistry(this.kind, [...this.#plugins.values(), ...plugins]);
  }

  /** What `{ name, ...options }` describes; throws `config.invalid` for an unknown name or wrong options. */
  create(config: unknown, path = this.kind): Made {
    return this.#plugins.get(parseName(this.names, config, path))!.create(config, path);
  }
}
