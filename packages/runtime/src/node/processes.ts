/** What Linux says of processes, in `/proc`; on another system there are none. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { setImmediate as turn } from "node:timers/promises";

const codeOf = (error: unknown): string => (error as NodeJS.ErrnoException).code ?? "";
/** What was asked of a process that there is not. */
export const isAbsent = (error: unknown): boolean => ["ENOENT", "ESRCH"].includes(codeOf(error));
export const isForbidden = (error: unknown): boolean => ["EACCES", "EPERM"].includes(codeOf(error));

/** From its environment: each entry with a zero before and behind it. */
export type Test = (environment: string) => boolean;
export const has =
  (variable: string, value: string): Test =>
  (environment) =>
    environment.includes(`\0${variable}=${value}\0`);

/** A machine may have thousands of processes, of which others are served in between. */
const lookedAtOnce = 64;

/** Undefined when the system does not say. */
export async function foundInTurns(test: Test): Promise<number[] | undefined> {
  try {
    const found: number[] = [];
    for (const pids = processes(); pids.length > 0; await turn())
      found.push(...pids.splice(0, lookedAtOnce).filter((pid) => isFound(pid, test)));
    return found;
  } catch {
    return undefined;
  }
}

/** As far as the system says. */
export function foundNow(test: Test): number[] {
  try {
    return processes().filter((pid) => isFound(pid, test));
  } catch {
    return [];
  }
}

/** One that is ending has no environment any more, but files and devices until it waits to be reaped. */
export function holdsSomething(pid: number): boolean {
  try {
    return !/^[ZX]/.test(statOf(pid) ?? "Z");
  } catch {
    return true;
  }
}

/** Whether the process of that name has ended; undefined of one in another container, where numbers mean others. Throws when the system does not say. */
export function isGone(name: string): boolean | undefined {
  const [namespace, pid, begun] = name.split("/");
  return ownName === undefined || namespace !== ownNamespace ? undefined : begunOf(Number(pid)) !== begun;
}

function namespaceOfPids(): string | undefined {
  try {
    return readlinkSync("/proc/self/ns/pid");
  } catch {
    return undefined;
  }
}

/** In ticks since the machine's start, by which a number that was used again is told; undefined of one that has ended. */
function begunOf(pid: number): string | undefined {
  const fields = statOf(pid)?.split(" ");
  return fields === undefined || /^[ZX]/.test(fields[0] as string) ? undefined : fields[19];
}

/** From its state on: the name before it may hold anything. Undefined where there is no such process; else throws when the system does not say. */
function statOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    return stat.slice(stat.lastIndexOf(")") + 2);
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
}

/** Throws when the system does not say; there are none where it has no `/proc`. */
function processes(): number[] {
  try {
    return readdirSync("/proc").map(Number).filter(Number.isInteger).reverse(); // those that began last first
  } catch (error) {
    if (isAbsent(error)) return [];
    throw error;
  }
}

/** Throws when the system does not say. */
function isFound(pid: number, test: Test): boolean {
  try {
    return test(`\0${readFileSync(`/proc/${pid}/environ`, "latin1")}\0`);
  } catch (error) {
    if (isAbsent(error) || isForbidden(error)) return false; // it has ended, or is another user's
    throw error;
  }
}

const ownNamespace = namespaceOfPids();
/** What no process before or beside this one is called; undefined on other systems than Linux. */
export const ownName: string | undefined = nameOfOwn();

function nameOfOwn(): string | undefined {
  const begun = begunOf(process.pid);
  return ownNamespace === undefined || begun === undefined ? undefined : [ownNamespace, process.pid, begun].join("/");
}
