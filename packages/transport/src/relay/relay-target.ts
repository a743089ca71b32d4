/** Whom a relay dials for what came over NATS, or over its own socket. */
import { basename, dirname, join } from "node:path";
import { z } from "zod";

/** Also a part of a subject, where a dot would begin the next one. */
const MemberName = z.string().regex(/^[A-Za-z0-9_-]{1,100}$/);
/** As `ComponentName`, since a worker's socket is called by its component and its rank; a relay's thread loads no contracts. */
const TargetName = z.string().regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$/);

const Opening = z.object({
  tunnel: z.uuid(),
  target: TargetName,
  from: MemberName,
  /** that it has the run's token (TU6) */
  proof: z.string().regex(/^[0-9a-f]{64}$/),
});
/** What one relay asks another for. */
export type Opening = z.infer<typeof Opening>;

const maxOpeningLength = 1000;

export function readOpening(text: string): Opening | undefined {
  if (text.length > maxOpeningLength) return undefined;
  try {
    return Opening.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}

/** The line by which a process asks its relay for another: the member there, and its name. */
export function readRelayLine(line: string): { readonly to: string; readonly target: string } | undefined {
  const [member, name, ...rest] = line.split(" ");
  const to = MemberName.safeParse(member).data;
  const target = TargetName.safeParse(name).data;
  return to === undefined || target === undefined || rest.length > 0 ? undefined : { to, target };
}

export type RelayTarget = { readonly host: string; readonly port: number } | { readonly path: string };

export type RelayTargets = {
  /** of this machine, by name */
  readonly ports: Readonly<Record<string, { readonly host: string; readonly port: number }>>;
  /** the relay's own socket: others beside it are reached by their names */
  readonly path: string | undefined;
};

/** Undefined when nobody has that name, as nobody has one of those that every object inherits, nor the relay's own. */
export function relayTarget(name: string, { ports, path }: RelayTargets): RelayTarget | undefined {
  if (!TargetName.safeParse(name).success) return undefined;
  if (Object.hasOwn(ports, name)) return ports[name];
  return path === undefined || name === basename(path) ? undefined : { path: join(dirname(path), name) };
}
