/**
 * Test commands that run on as many processes as they are told: those of data sets rarely do by themselves
 * (ARL-Tangram §5.2). A template has `{parallel}` where the number goes.
 */

export const parallelMark = "{parallel}";

type Runner = {
  /** whether the words at the beginning, the program's name without its folder, start this runner */
  readonly starts: (words: readonly string[]) => number;
  readonly flags: readonly string[];
  readonly insert: readonly string[];
};

const after = (words: readonly string[], ...expected: readonly (string | RegExp)[]): number =>
  expected.every((one, i) => (typeof one === "string" ? words[i] === one : one.test(words[i] ?? "")))
    ? expected.length
    : 0;

const runners: readonly Runner[] = [
  {
    // Of the plug-in pytest-xdist.
    starts: (words) => after(words, "pytest") || after(words, /^python[\d.]*$/, "-m", "pytest"),
    flags: ["-n", "--numprocesses"],
    insert: ["-n", parallelMark],
  },
  {
    starts: (words) => after(words, "npx", "vitest") || after(words, "vitest"),
    flags: ["--maxWorkers", "--max-workers"],
    insert: ["--maxWorkers", parallelMark],
  },
  {
    starts: (words) => after(words, "node", "--test"),
    flags: ["--test-concurrency"],
    insert: [`--test-concurrency=${parallelMark}`],
  },
];

/** The template of a command: itself where it has the mark, or with the flag of its test runner; else undefined. */
export function parallelTemplate(command: readonly string[]): string[] | undefined {
  if (command.some((word) => word.includes(parallelMark))) return [...command];
  const words = [command[0]?.slice(command[0].lastIndexOf("/") + 1) ?? "", ...command.slice(1)];
  for (const { starts, flags, insert } of runners) {
    const at = starts(words);
    if (at === 0) continue;
    const rest = command.slice(at).filter((word, i, all) => !isFlag(flags, word) && !flags.includes(all[i - 1] ?? ""));
    // Vitest's `run` and `watch` come before its flags.
    const sub = /^(run|watch)$/.test(rest[0] ?? "") && insert[0] === "--maxWorkers" ? 1 : 0;
    return [...command.slice(0, at), ...rest.slice(0, sub), ...insert, ...rest.slice(sub)];
  }
  return undefined;
}

export const fillTemplate = <Words extends readonly string[]>(template: Words, units: number) =>
  template.map((word) => word.replaceAll(parallelMark, String(units))) as { -readonly [K in keyof Words]: string };

const isFlag = (flags: readonly string[], word: string): boolean =>
  flags.some((flag) => word === flag || word.startsWith(`${flag}=`) || (flag === "-n" && /^-n\d+$/.test(word)));
