import { type Prompt, TreadleError } from "@treadle/contracts";
import { parseName } from "../config.ts";

/** What a reward judges: the policy's tokens and their text, without the stop token. */
export type ScoredCompletion = { readonly tokens: Int32Array; readonly text: string };

/** Judges a completion. May be asynchronous (a sandbox, a model); `signal` aborts when nobody wants the answer any more. */
export interface Reward {
  readonly name: string;
  score(prompt: Prompt, completion: ScoredCompletion, signal?: AbortSignal): number | Promise<number>;
}

/** A kind of reward: makes one from its part of the configuration, which it validates itself (see `parseConfig`). */
export type RewardPlugin = {
  readonly name: string;
  create(config: unknown, path: string): Reward;
};

/** Rewards by name. Immutable: a registry with more plugins is made with `with`. */
export class RewardRegistry {
  readonly #plugins: ReadonlyMap<string, RewardPlugin>;

  constructor(plugins: readonly RewardPlugin[]) {
    this.#plugins = new Map(plugins.map((plugin) => [plugin.name, plugin]));
    if (this.#plugins.size !== plugins.length) {
      const names = plugins.map((plugin) => plugin.name);
      const twice = names.find((name, index) => names.indexOf(name) !== index);
      throw new TreadleError("config.invalid", `reward '${twice}' is registered twice: allowed is one plugin a name`);
    }
  }

  get names(): string[] {
    return [...this.#plugins.keys()];
  }

  with(...plugins: readonly RewardPlugin[]): RewardRegistry {
    return new RewardRegistry([...this.#plugins.values(), ...plugins]);
  }

  /** The reward of `{ name, ...options }`; throws `config.invalid` for an unknown name or wrong options. */
  create(config: unknown, path = "reward"): Reward {
    return this.#plugins.get(parseName(this.names, config, path))!.create(config, path);
  }
}

/**
 * Scores one completion. Throws `learning.reward-failed`, naming the reward and the prompt, when the plugin throws or
 * answers anything but a finite number; a cancellation passes through as it is.
 */
export async function scoreCompletion(
  reward: Reward,
  prompt: Prompt,
  completion: ScoredCompletion,
  signal?: AbortSignal,
): Promise<number> {
  const who = `reward '${reward.name}' of prompt '${prompt.id}'`;
  const score = await (async () => reward.score(prompt, completion, signal))().catch((cause: unknown) => {
    if (signal?.aborted || (cause instanceof TreadleError && cause.disposition === "cancelled")) throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new TreadleError("learning.reward-failed", `${who} failed: ${reason}`, { cause });
  });
  if (typeof score !== "number" || !Number.isFinite(score)) {
    throw new TreadleError("learning.reward-failed", `${who} is '${score}': allowed is a finite number`);
  }
  return score;
}
