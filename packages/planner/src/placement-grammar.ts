/**
 * The grammar of `placement.components`, whose keys are component names (or several, `actor,inference`) and whose
 * values say which devices those components get and how ranks are laid over them:
 *
 * ```text
 * placement := "none" ["x" ranks] | part ("," part)* ["/" devicesPerRank] ["x" ranksPerShare]
 * part      := [scope "."] ( "all" | number | number "-" number )
 * scope     := "node[" number "]" | "node(" name ")" | "group(" name ")"
 * ```
 *
 * - `all`, `0-3`, `0,2,5`: device numbers. With a scope they count from 0 inside that node or node group, and the scope
 *   holds for the parts after it until another one is named: `node[0].0-1,node[1].0,2`. `node[1]` is the second node in
 *   the order in which the devices list them; `node(name)` is the node of that name.
 * - `/4`: four devices a rank (a share); `0-7 /4` is two ranks. Without it a rank has one device, or as many as the
 *   component's own `devicesPerRank` asks for.
 * - `x2`: two ranks on every share; `0-3 x2` is eight ranks, two a device.
 * - `none`: no devices. Its ranks are as many as the component asks for at least, or `none x3` is three. Components that are
 *   placed so leave the others to the mode: only a device for one of them makes it necessary to place all.
 */
import { TreadleError } from "@treadle/contracts";

export type PlacementScope =
  | { readonly type: "cluster" }
  | { readonly type: "node-index"; readonly index: number }
  | { readonly type: "node-name"; readonly name: string }
  | { readonly type: "group"; readonly name: string };

export type PlacementPart = { readonly scope: PlacementScope; readonly first: number; readonly last: number | "all" };

export type PlacementExpression = {
  /** as written, for messages: `rollout: 0-3` */
  readonly text: string;
  /** empty for `none` */
  readonly parts: readonly PlacementPart[];
  readonly devicesPerRank?: number | undefined;
  readonly ranksPerShare: number;
};

export function invalid(text: string, problem: string, details: Record<string, unknown> = {}): TreadleError {
  return new TreadleError("placement.invalid", `placement.components: '${text}' ${problem}`, {
    details: { expression: text, ...details },
  });
}

/** The components that a key of `placement.components` is of. */
export const componentsOf = (key: string): string[] => key.split(",").map((name) => name.trim());

/** Parses one value. Throws `placement.invalid` with the character at which reading stopped, counted from 1. */
export function parsePlacement(key: string, value: string): PlacementExpression {
  const text = `${key}: ${value}`;
  let at = 0;
  const fail = (expected: string): never => {
    const found = at < value.length ? `'${value[at]}'` : "the end";
    throw invalid(text, `is not understood at character ${at + 1}: expected ${expected}, found ${found}`, {
      character: at + 1,
    });
  };
  const skipSpaces = (): void => {
    while (value[at] === " " || value[at] === "\t") at++;
  };
  const take = (token: string): boolean => {
    if (!value.startsWith(token, at)) return false;
    at += token.length;
    return true;
  };
  const takeNumber = (what: string): number => {
    const digits = /^\d{1,9}/.exec(value.slice(at))?.[0];
    if (digits === undefined) return fail(what);
    at += digits.length;
    return Number(digits);
  };
  const takeName = (): string => {
    const close = value.indexOf(")", at);
    if (close <= at) fail("a name and ')'");
    const name = value.slice(at, close);
    at = close + 1;
    return name;
  };
  const takeScope = (): PlacementScope | undefined => {
    let scope: PlacementScope;
    if (take("node[")) {
      const index = takeNumber("the number of a node");
      if (!take("]")) fail("']'");
      scope = { type: "node-index", index };
    } else if (take("node(")) scope = { type: "node-name", name: takeName() };
    else if (take("group(")) scope = { type: "group", name: takeName() };
    else return undefined;
    if (!take(".")) fail("'.' and devices, as in 'node[0].0-3' or 'group(name).all'");
    return scope;
  };

  const positive = (what: string): number => {
    skipSpaces();
    const number = takeNumber(what);
    if (number === 0) throw invalid(text, `asks for 0 where ${what} must be at least 1`);
    return number;
  };
  const parts: PlacementPart[] = [];
  skipSpaces();
  if (take("none")) {
    skipSpaces();
    const ranks = take("x") ? positive("the number of ranks") : 1;
    skipSpaces();
    if (at < value.length) fail("'x' or the end");
    return { text, parts, ranksPerShare: ranks };
  }
  let scope: PlacementScope = { type: "cluster" };
  do {
    skipSpaces();
    scope = takeScope() ?? scope;
    if (take("all")) {
      parts.push({ scope, first: 0, last: "all" });
    } else {
      const none = parts.length === 0 ? "'none', " : "";
      const first = takeNumber(`'all', ${none}a device number, 'node[0].', 'node(name).' or 'group(name).'`);
      const last = take("-") ? takeNumber("a device number after '-'") : first;
      if (last < first)
        throw invalid(text, `has the range '${first}-${last}', which runs backwards; write '${last}-${first}'`);
      parts.push({ scope, first, last });
    }
    skipSpaces();
  } while (take(","));

  const devicesPerRank = take("/") ? positive("the number of devices a rank") : undefined;
  skipSpaces();
  const ranksPerShare = take("x") ? positive("the number of ranks a share") : 1;
  skipSpaces();
  if (at < value.length) fail("',', '/', 'x' or the end");
  return { text, parts, devicesPerRank, ranksPerShare };
}

/** The shortest placement text for device numbers: `0-3,6`. */
export function formatDeviceNumbers(numbers: readonly number[]): string {
  const sorted = [...numbers].sort((a, b) => a - b);
  const ranges: string[] = [];
  for (let start = 0; start < sorted.length; ) {
    let end = start;
    while (sorted[end + 1] === (sorted[end] ?? 0) + 1) end++;
    ranges.push(end === start ? `${sorted[start]}` : `${sorted[start]}-${sorted[end]}`);
    start = end + 1;
  }
  return ranges.join(",");
}
