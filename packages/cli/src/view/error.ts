/** How an error is shown to a person: what happened first, where, what it led to, and what to do. */
import { join } from "node:path";
import { type ErrorCode, type ErrorOrigin, errorCatalogue, TreadleError } from "@treadle/contracts";
import { packageFolder } from "@treadle/contracts/package-folder";
import pc from "picocolors";
import { printableLines, singleLine, wrap } from "./text.ts";

export type ErrorView = { readonly verbose: boolean; readonly colour: boolean; readonly columns?: number };

const maxTailLines = 12;

/**
 * The root cause leads (S1), in Treadle's words where it has some for what a system or a library says, since only those
 * have a remedy. A misuse has no stack: the reader's configuration is at fault, not a line of code. Other
 * errors name the first line of the user's own code; `verbose` adds every stack.
 */
export function renderError(error: unknown, view: ErrorView): string {
  const c = pc.createColors(view.colour);
  const columns = Math.max(40, Math.min(view.columns ?? process.stderr.columns ?? 100, 120));
  const chain = causes(error);
  const root = chain.at(-1);
  const known = chain.filter((each): each is TreadleError => each instanceof TreadleError);
  const outermost = known[0];
  const worded = wordedBy(chain);
  const innermost = worded ?? known.at(-1);
  const lead = worded ?? root;
  const origin = mergeOrigins(known);
  const message = messageOf(lead);
  const split = (error: unknown) => splitRemedy(error, causes(error).slice(1).map(messageOf));
  const rows: [string, string[]][] = [];

  const problems = problemsOf(innermost);
  const repeats = innermost !== undefined && problems.some((problem) => message.includes(problem));
  // Each of the listed problems says what was allowed and what it got.
  const { what, remedy } = repeats ? { what: message, remedy: undefined } : split(lead);
  const headline = repeats ? beforeProblems(message, problems) || catalogueMeaning(innermost) : what;
  if (innermost && problems.length === 0) rows.push(["what", [`${catalogueMeaning(innermost)} (${innermost.code})`]]);
  if (problems.length > 0) rows.push(["problems", problems]);
  const reason = singleLine(messageOf(root));
  if (lead !== root && reason !== "" && !singleLine(message).includes(reason)) rows.push(["because", [reason]]);
  const where = describeOrigin(origin);
  if (where !== "") rows.push(["where", [where]]);
  const frame = innermost === undefined || innermost.disposition === "fatal" ? ownFrame(root) : undefined;
  if (frame !== undefined) rows.push(["code", [frame]]);
  const consequences = chain
    .slice(0, chain.indexOf(lead))
    .reverse()
    .map((each) => singleLine(split(each).what))
    .filter((text, i, all) => text !== "" && text !== singleLine(what) && all.indexOf(text) === i);
  if (consequences.length > 0) rows.push(["led to", consequences]);
  const tail = (origin.logTail ?? []).slice(-maxTailLines);
  if (tail.length > 0) rows.push([`log`, tail.map((line) => c.dim(`│ ${singleLine(line)}`))]);
  const hasStack = root instanceof Error && innermost?.disposition !== "misuse";
  const outer = outermost === innermost || !outermost ? undefined : split(outermost).remedy;
  const advice = remedies(remedy, outer, outermost);
  if (hasStack && !view.verbose) advice.push("add --verbose for the stack traces");
  if (advice.length > 0) rows.push(["remedy", advice]);

  const width = Math.max(...rows.map(([name]) => name.length), 6);
  const body = rows.flatMap(([name, texts]) =>
    texts
      .flatMap((text) => (name === "log" ? [text] : wrap(text, columns - width - 4, "  ")))
      .map((line, i) => `  ${c.dim((i === 0 ? name : "").padEnd(width))}  ${name === "remedy" ? c.bold(line) : line}`),
  );
  const lines = [
    ...wrap(headline, columns - 2).map((line, i) => (i === 0 ? `${c.red("✗")} ${c.bold(line)}` : `  ${c.bold(line)}`)),
    ...(body.length > 0 ? ["", ...body] : []),
  ];
  if (view.verbose) {
    for (const each of [...chain].reverse()) {
      if (each instanceof Error && each.stack) lines.push("", c.dim(printableLines(each.stack)));
    }
  }
  return lines.join("\n");
}

/** The error and its causes, outermost first; a cycle ends the list. */
function causes(error: unknown): unknown[] {
  const chain: unknown[] = [];
  for (let current = error; current !== undefined && current !== null && !chain.includes(current); ) {
    chain.push(current);
    current = current instanceof Error ? current.cause : undefined;
  }
  return chain.length === 0 ? [error] : chain;
}

/** Say that code which is not Treadle's has thrown: what it has thrown says more. */
const carriers: readonly ErrorCode[] = [
  "action.failed",
  "call.failed",
  "channel.producer-failed",
  "worker.setup-failed",
];

/**
 * The error in which Treadle words what a system or a library has said; undefined where the root says it itself. What has
 * crossed a process boundary comes as a failed call.
 */
function wordedBy(chain: readonly unknown[]): TreadleError | undefined {
  const inner = chain.findLast((each) => each instanceof TreadleError && each.code !== "call.failed");
  if (inner === chain.at(-1) || !(inner instanceof TreadleError)) return undefined;
  return carriers.includes(inner.code) ? undefined : inner;
}

/** Messages repeat what others have said, over the network, too. */
function messageOf(error: unknown): string {
  const message = !(error instanceof Error) ? String(error) : error.message === "" ? error.name : error.message;
  return printableLines(message);
}

/**
 * By the catalogue's wording the remedy is what follows the last semicolon. Not of messages that others have worded, nor of
 * those that a message repeats from its causes: their semicolons say nothing.
 */
function splitRemedy(error: unknown, nested: readonly string[]): { what: string; remedy: string | undefined } {
  const message = messageOf(error);
  if (!(error instanceof TreadleError) || error.code === "call.failed") return { what: message, remedy: undefined };
  const masked = nested.reduce(
    (text, inner) => (inner === "" ? text : text.replaceAll(inner, "_".repeat(inner.length))),
    message,
  );
  // Values stand in quotes and may hold anything, so what they hold does not count.
  const unquoted = masked.replace(/(?<![a-z])'[^']*'/g, (quoted) => "_".repeat(quoted.length));
  const at = unquoted.lastIndexOf("; ");
  return at < 0 ? { what: message, remedy: undefined } : { what: message.slice(0, at), remedy: message.slice(at + 2) };
}

/** What a message says before it lists the problems. */
function beforeProblems(message: string, problems: readonly string[]): string {
  const starts = problems.map((problem) => message.indexOf(problem)).filter((at) => at >= 0);
  return message.slice(0, Math.min(...starts)).replace(/[\s:]+$/, "");
}

const catalogueMeaning = (error: TreadleError) => errorCatalogue[error.code].meaning;

/** The list that validation errors carry as `details.problems`. */
function problemsOf(error: TreadleError | undefined): string[] {
  const problems = error?.details.problems;
  if (!Array.isArray(problems)) return [];
  return problems.flatMap((problem: unknown) => {
    if (typeof problem === "string") return [printableLines(problem)];
    if (typeof problem !== "object" || problem === null) return [];
    const { path, message } = problem as { path?: unknown; message?: unknown };
    return typeof message === "string" ? [printableLines(path ? `${String(path)}: ${message}` : message)] : [];
  });
}

/** What the innermost error says of its origin counts; outer ones fill what it leaves open. */
function mergeOrigins(errors: readonly TreadleError[]): ErrorOrigin {
  const merged: ErrorOrigin = {};
  for (const { origin } of errors) {
    const present = Object.entries(origin).filter(([, value]) => value !== undefined);
    Object.assign(merged, Object.fromEntries(present));
  }
  return merged;
}

function describeOrigin({ worker, node, method, step }: ErrorOrigin): string {
  const parts: string[] = [];
  if (worker !== undefined) parts.push(`worker ${worker}`);
  if (node !== undefined) parts.push(`on ${node}`);
  if (method !== undefined) parts.push(`in ${method}()`);
  if (step !== undefined) parts.push(`at step ${step}`);
  return singleLine(parts.join(" "));
}

/** In a checkout, where Treadle is no dependency in `node_modules`. */
const packagesRoot = join(packageFolder(import.meta.url), "../../packages/");

/** The first line of the stack that is neither Node's nor a dependency's nor Treadle's. */
function ownFrame(error: unknown): string | undefined {
  if (!(error instanceof Error) || error.stack === undefined) return undefined;
  const frames = error.stack.split("\n").filter((line) => /^\s+at /.test(line));
  const isOurs = (line: string) =>
    line.includes(packagesRoot) && /\/(src|dist)\//.test(line.slice(line.indexOf(packagesRoot)));
  const own = frames.find((line) => !/node_modules|node:|\(native\)|<anonymous>\)?$/.test(line) && !isOurs(line));
  return own?.trim().replace(/^at (?:<anonymous> \((.*)\)$)?/, "$1");
}

function remedies(
  remedy: string | undefined,
  outer: string | undefined,
  outermost: TreadleError | undefined,
): string[] {
  const advice = remedy === undefined ? [] : [remedy];
  if (outer !== undefined && outer !== remedy) advice.push(outer);
  if (advice.length === 0 && outermost?.disposition === "retryable")
    advice.push("run it again; 'treadle resume' goes on");
  return advice;
}
