import { type DeviceSpec, TreadleError } from "@treadle/contracts";
import {
  componentsOf,
  formatDeviceNumbers,
  invalid,
  type PlacementExpression,
  type PlacementScope,
  parsePlacement,
} from "./placement-grammar.ts";
import type { PlacementComponent, PlacementInput } from "./placement-input.ts";
import { kindOf } from "./placement-modes.ts";
import { isSlot } from "./placement-slots.ts";

export type ExplicitPlacement = { readonly expression: PlacementExpression; readonly devices: readonly DeviceSpec[] };

/** What `placement.components` gives every component. Throws `placement.invalid` at the first thing that does not hold. */
export function explicitPlacements(
  input: PlacementInput,
  explicit: Readonly<Record<string, string>>,
): Map<string, ExplicitPlacement> {
  const known = new Map(input.components.map((c) => [c.name, c]));
  const placed = new Map<string, ExplicitPlacement>();
  for (const [key, value] of Object.entries(explicit)) {
    const expression = parsePlacement(key, value);
    for (const name of componentsOf(key)) {
      const component = known.get(name);
      if (component === undefined) {
        const names = [...known.keys()].map((n) => `'${n}'`).join(", ");
        const nearest = nearestName(name, [...known.keys()]);
        throw invalid(
          expression.text,
          `names component '${name}', but this workflow has ${names}${nearest ? `; did you mean '${nearest}'?` : ""}`,
        );
      }
      if (placed.has(name))
        throw invalid(expression.text, `places component '${name}' a second time; name it in one key only`);
      placed.set(name, {
        expression,
        devices: usableOf(namedDevices(expression, component, input), expression, input),
      });
    }
  }
  const missing = input.components.filter((c) => !placed.has(c.name)).map((c) => c.name);
  if (missing.length > 0) {
    throw new TreadleError(
      "placement.invalid",
      `placement.components does not place ${missing.map((n) => `'${n}'`).join(", ")}; add '${missing.join(",")}: all', or drop placement.components to let the mode place all of them`,
      { details: { missing } },
    );
  }
  return placed;
}

/** A device that an expression names: by its number, or as one of `all` in `scope`. */
export type NamedDevice = {
  readonly device: DeviceSpec;
  readonly number: number;
  readonly byAll: boolean;
  readonly scope: string;
};

/** Devices that expressions name and count, whether or not they may be used. */
function numberedDevices({ numbered, devices }: Numbering): readonly DeviceSpec[] {
  return numbered === undefined ? devices : [...numbered, ...devices.filter(isSlot)];
}

/** Devices that expressions choose from, and the groups of their nodes. */
export type Numbering = {
  readonly devices: readonly DeviceSpec[];
  readonly numbered?: readonly DeviceSpec[] | undefined;
  readonly nodeGroups?: Readonly<Record<string, readonly number[]>> | undefined;
};

/** What an expression gives a component of the cluster as it is numbered. Throws `placement.invalid` for what it never had. */
export function namedDevices(
  expression: PlacementExpression,
  component: PlacementComponent,
  input: Numbering,
): NamedDevice[] {
  const chosen = new Map<string, NamedDevice>();
  const { text } = expression;
  const all = numberedDevices(input);
  for (const part of expression.parts) {
    // Slots are of one component alone.
    const inScope = scopeDevices(part.scope, { ...input, devices: all }, text).filter(
      (device) => !isSlot(device) || device.kind === component.deviceKind,
    );
    const kind = kindOf(component, input);
    const ofKind = inScope.filter((d) => d.kind === kind);
    // A component without a kind may be put on any device by name; numbers of the first kind win.
    const candidates = ofKind.length > 0 || component.deviceKind !== undefined ? ofKind : inScope;
    const where = part.scope.type === "cluster" ? "this cluster" : scopeText(part.scope);
    if (candidates.length === 0) throw invalid(text, `needs a device of kind '${kind}', but ${where} has none`);
    const numberOf = (device: DeviceSpec, position: number): number =>
      part.scope.type === "cluster" ? device.index : position;
    const byNumber = new Map(candidates.map((d, position) => [numberOf(d, position), d]));
    const missing = (number: number): TreadleError =>
      invalid(
        text,
        `names device ${number}, but ${where} has devices ${formatDeviceNumbers([...byNumber.keys()])}; name some of these`,
        {
          device: number,
        },
      );
    const exists = (number: number): boolean =>
      byNumber.has(number) || (part.scope.type === "cluster" && inScope.some((d) => d.index === number));
    if (part.last !== "all" && !exists(part.last)) throw missing(part.last);
    const numbers =
      part.last === "all"
        ? [...byNumber.keys()]
        : Array.from({ length: part.last - part.first + 1 }, (_, i) => part.first + i);
    for (const number of numbers) {
      let device = byNumber.get(number);
      if (device === undefined && part.scope.type === "cluster") {
        const other = inScope.find((d) => d.index === number);
        if (other !== undefined && component.deviceKind !== undefined) {
          throw invalid(
            text,
            `names device ${number}, a '${other.kind}', but component '${component.name}' needs '${kind}'`,
          );
        }
        device = other;
      }
      if (device === undefined) throw missing(number);
      if (chosen.has(device.id)) throw invalid(text, `names device ${number} ('${device.id}') twice`);
      chosen.set(device.id, { device, number, byAll: part.last === "all", scope: where });
    }
  }
  return [...chosen.values()];
}

/** Of `all` those that may be used, and of numbers all. */
function usableOf(
  named: readonly NamedDevice[],
  { text, devicesPerRank: size }: PlacementExpression,
  input: Numbering,
): DeviceSpec[] {
  const usable = new Set(input.devices.map(({ id }) => id));
  const gone = named.find(({ device, byAll }) => !byAll && !usable.has(device.id));
  if (gone !== undefined) {
    const left = numberedDevices(input).filter(({ id, kind }) => usable.has(id) && kind === gone.device.kind);
    const problem =
      gone.scope === "this cluster"
        ? `names device ${gone.number}, but this cluster has devices ${formatDeviceNumbers(left.map(({ index }) => index))}`
        : `names device ${gone.number} ('${gone.device.id}') of ${gone.scope}, which is not there`;
    throw invalid(text, problem, { device: gone.number });
  }
  const devices = named.map(({ device }) => device).filter(({ id }) => usable.has(id));
  if (devices.length === 0 && named.length > 0)
    throw invalid(text, `names devices of ${named[0]?.scope}, none of which is there`);
  if (size !== undefined && devices.length % size !== 0) {
    throw invalid(text, `has ${devices.length} devices, which do not divide into ranks of ${size}`);
  }
  if (size !== undefined) {
    for (let at = 0; at < devices.length; at += size) {
      const rank = devices.slice(at, at + size);
      const stray = rank.find((d) => d.node !== rank[0]!.node);
      if (stray !== undefined) {
        throw invalid(
          text,
          `has a rank that crosses from node '${rank[0]!.node}' to '${stray.node}'; choose devices so that every ${size} are on one node`,
        );
      }
    }
  }
  return devices;
}

function scopeText(scope: PlacementScope): string {
  if (scope.type === "node-index") return `node[${scope.index}]`;
  if (scope.type === "node-name") return `node(${scope.name})`;
  return scope.type === "group" ? `group(${scope.name})` : "cluster";
}

function scopeDevices(scope: PlacementScope, input: Numbering, text: string): readonly DeviceSpec[] {
  if (scope.type === "cluster") return input.devices;
  const nodes = [...new Set(input.devices.map((d) => d.node))];
  const nodeAt = (index: number, by: string): string => {
    const node = nodes[index];
    if (node === undefined) {
      throw invalid(
        text,
        `${by} node ${index}, but this cluster has nodes ${formatDeviceNumbers(nodes.map((_, i) => i))}`,
      );
    }
    return node;
  };
  if (scope.type === "node-index") {
    const node = nodeAt(scope.index, "names");
    return input.devices.filter((d) => d.node === node);
  }
  if (scope.type === "node-name") {
    if (!nodes.includes(scope.name)) {
      throw invalid(text, `names node '${scope.name}', but this cluster has ${nodes.map((n) => `'${n}'`).join(", ")}`);
    }
    return input.devices.filter((d) => d.node === scope.name);
  }
  const groups = input.nodeGroups ?? {};
  const members = Object.hasOwn(groups, scope.name) ? groups[scope.name] : undefined;
  if (members === undefined) {
    const names = Object.keys(groups);
    throw invalid(
      text,
      `names group '${scope.name}', but ${names.length > 0 ? `the node groups are ${names.map((n) => `'${n}'`).join(", ")}` : "no node group is configured"}`,
    );
  }
  const inGroup = new Set(members.map((index) => nodeAt(index, `uses group '${scope.name}', which has`)));
  return input.devices.filter((d) => inGroup.has(d.node));
}

/** The known name within two edits, for "did you mean". */
function nearestName(name: string, known: readonly string[]): string | undefined {
  const distance = (a: string, b: string): number => {
    let row = Array.from({ length: b.length + 1 }, (_, j) => j);
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++) {
        next.push(Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)));
      }
      row = next;
    }
    return row[b.length]!;
  };
  let best: string | undefined;
  let bestDistance = 3;
  for (const candidate of known) {
    const d = distance(name, candidate);
    if (d < bestDistance) [best, bestDistance] = [candidate, d];
  }
  return best;
}
