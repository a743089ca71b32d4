import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { commands, runProtocol, topics, type Verb } from "@treadle/contracts";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

type Row = { verb: string; from: string; to: string; means: string };

const rowsOf = (verbs: Readonly<Record<string, Verb>>): Row[] =>
  Object.entries(verbs).map(([verb, { from, to, means, reply }]) => {
    return { verb: reply ? verb : `${verb} (told)`, from: from.join(", "), to, means };
  });

const packages = join(projectRoot, "packages");
const sources = readdirSync(packages, { recursive: true, encoding: "utf8" })
  .filter((path) => /^[a-z]+\/src\/.*\.ts$/.test(path) && !path.startsWith("bench/"))
  .map((path) => ({ path, text: readFileSync(join(packages, path), "utf8") }));

/** Of each verb, the files that say it so. */
const filesWith = (pattern: (verb: string) => RegExp, verb: string): string[] =>
  sources.flatMap(({ path, text }) => [...text.matchAll(pattern(verb))].map(() => path));

const quoted = (verb: string) => `"${verb.replace(".", "\\.")}"`;

test("PROTOCOL.md lists every verb, with who says it to whom, in the words of the protocol", () => {
  const documented = readFileSync(join(packages, "contracts/PROTOCOL.md"), "utf8")
    .split("\n")
    .map((line) => /^\| `([^`]+)`( \(told\))? \| ([^|]+) → ([^|]+) \| (.+) \|$/.exec(line))
    .filter((match) => match !== null)
    .map(([, verb, told = "", from, to, means]) => ({ verb: `${verb}${told}`, from, to, means }));
  const commanded = [...rowsOf(commands.node), ...rowsOf(commands.run), ...rowsOf(commands.pool)];
  const spoken = [...rowsOf(runProtocol), ...commanded, ...rowsOf(topics)];
  expect(documented).toEqual(spoken);
});

test("every verb between processes has one handler, and is said by somebody", () => {
  const handlers = (verb: string) => filesWith((name) => new RegExp(`\\.handle\\(\\s*${quoted(name)}`, "g"), verb);
  const sayers = (verb: string) =>
    filesWith((name) => new RegExp(`(?:\\.(?:request|notify)\\(|\\btell\\([^"]*)\\s*${quoted(name)}`, "g"), verb);
  for (const [verb, { to, reply }] of Object.entries(runProtocol as Readonly<Record<string, Verb>>)) {
    expect({ verb, to, handlers: handlers(verb).length }).toEqual({ verb, to, handlers: 1 });
    expect({ verb, isSaid: sayers(verb).length > 0 }).toEqual({ verb, isSaid: true });
    const how = filesWith((name) => new RegExp(`\\.${reply ? "notify" : "request"}\\(\\s*${quoted(name)}`, "g"), verb);
    expect({ verb, saidTheOtherWay: how }).toEqual({ verb, saidTheOtherWay: [] });
  }
});

test("commands and topics go by their schemas alone", () => {
  // The types of `answering` want one handler for each command. What is below says and hears bodies that nobody checked.
  const unchecked = sources.filter(
    ({ path, text }) =>
      path !== "contracts/src/commands.ts" &&
      !path.startsWith("transport/src/control-plane/") &&
      /\b[pP]lane\b[\s\n]*\.(command|publish|subscribe)\(/.test(text),
  );
  expect(unchecked.map(({ path }) => path)).toEqual([]);
  const announced = sources.filter(({ text }) => /\.announce\(\s*\n?\s*"(node|run|pool)"/.test(text));
  expect(announced.map(({ path }) => path).sort()).toEqual([
    "runtime/src/node/node-service.ts",
    "runtime/src/pool/pool-service.ts",
    "runtime/src/runner/nodes/nodes.ts",
  ]);
  for (const { text } of announced) expect(text).toMatch(/answering\("(node|run|pool)"/);
  for (const topic of Object.keys(topics)) {
    const said = filesWith((name) => new RegExp(`publishTo\\([^)]*${quoted(name)}`, "g"), topic);
    const heard = filesWith((name) => new RegExp(`listenTo\\([^)]*${quoted(name)}`, "g"), topic);
    expect({ topic, said: said.length > 0, heard: heard.length }).toEqual({ topic, said: true, heard: 1 });
  }
});

test("no handler takes a body for what it is not known to be", () => {
  const casts = sources.flatMap(({ path, text }) =>
    [...text.matchAll(/\.handle\(\s*"[^"]+",\s*(?:async )?\(([^)]*)\) =>[^;]*\bbody as\b/g)].map(() => path),
  );
  expect(casts).toEqual([]);
});
