/** What a user asks `treadle multiplex` to run: runs with names, and the settings of each. */
import { basename, resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";

export type RunSpec = {
  readonly name: string;
  readonly workflow: string;
  readonly configFile: string | undefined;
  /** `key.path=value` */
  readonly overrides: readonly string[];
};

const namePattern = /^[A-Za-z0-9_-]{1,32}$/;

/**
 * `workflows/bandit` is called `bandit`, `one=workflows/bandit` is called `one`. A setting is for the run by which it begins,
 * as `one.steps=3`, and so is a configuration file, as `one=small.yaml`.
 */
export function readRunSpecs(
  workflows: readonly string[],
  { set, config }: { readonly set: readonly string[]; readonly config: readonly string[] },
): RunSpec[] {
  const named = workflows.map((each) => {
    const at = each.indexOf("=");
    return at < 0 ? { name: basename(resolve(each)), workflow: each } : split(each, at, "workflow");
  });
  const names = named.map(({ name }) => name);
  for (const [index, name] of names.entries()) {
    if (!namePattern.test(name)) throw misuse(`run '${name}' has a name of other than letters, digits, '_' and '-'`);
    if (names.indexOf(name) !== index)
      throw misuse(`two runs are called '${name}'; name them, as 'one=${named[index]?.workflow}'`);
  }
  if (names.length < 2) throw misuse("one run shares devices with nobody; name a second one, or use 'treadle run'");
  const known = `the runs are ${names.join(", ")}`;
  const overrides = new Map<string, string[]>(names.map((name) => [name, []]));
  for (const each of set) {
    const [name = "", ...rest] = each.split(".");
    const own = overrides.get(name);
    if (own === undefined || rest.length === 0)
      throw misuse(`'--set ${each}' does not begin with the name of a run; ${known}, as '${names[0]}.${each}'`);
    own.push(rest.join("."));
  }
  const files = new Map<string, string>();
  for (const each of config) {
    const { name, workflow: file } = split(each, each.indexOf("="), "file");
    if (!overrides.has(name)) throw misuse(`'--config ${each}' is for no run; ${known}, as '${names[0]}=${file}'`);
    files.set(name, file);
  }
  return named.map((each) => ({
    ...each,
    configFile: files.get(each.name),
    overrides: overrides.get(each.name) ?? [],
  }));
}

const split = (text: string, at: number, what: string): { name: string; workflow: string } => {
  if (at <= 0 || at === text.length - 1) throw misuse(`'${text}' is not the name of a run, '=', and a ${what}`);
  return { name: text.slice(0, at), workflow: text.slice(at + 1) };
};

const misuse = (message: string) => new TreadleError("problem.invalid", message);
