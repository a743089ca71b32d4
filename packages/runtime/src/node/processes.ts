/** What Linux says of processes, in `/proc`; on another system, and where `/proc` is another namespace's, there are none. */
import { closeSync, openSync, readdirSync, readFileSync, readlinkSync, readSync } from "node:fs";
import { setImmediate as turn } from "node:timers/promises";

const codeOf = (error: unknown): string => (error as NodeJS.ErrnoException).code ?? "";
/** There is no such process. */
export const isAbsent = (error: unknown): boolean => ["ENOENT", "ESRCH"].includes(codeOf(error));
export const isForbidden = (error: unknown): boolean => ["EACCES", "EPERM"].includes(codeOf(error));
/** What says nothing of the process that was looked at: this process, or the machine, has none left. */
const isExhausted = (error: unknown): boolean => ["EMFILE", "ENFILE", "ENOMEM"].includes(codeOf(error));

/** Of an environment: each entry with a zero before and behind it. */
export type Test = (environment: Buffer) => boolean;

export const has = (variable: string, value: string): Test => {
  const entry = Buffer.from(`\0${variable}=${value}\0`);
  return (environment) => environment.includes(entry);
};

export function variableOf(variable: string, environment: Buffer): string | undefined {
  const before = Buffer.from(`\0${variable}=`);
  const at = environment.indexOf(before);
  if (at < 0) return undefined;
  const from = at + before.length;
  return environment.toString("latin1", from, environment.indexOf(0, from));
}

/** A machine may have thousands of processes, of which others are served in between. */
const lookedAtOnce = 64;
const readAtOnceBytes = 4 * 2 ** 20;

/** Undefined when the system does not say. */
export async function foundInTurns(test: Test): Promise<number[] | undefined> {
  try {
    const found: number[] = [];
    let bytes = 0;
    for (const [looked, pid] of processes().entries()) {
      const environment = environmentOf(pid);
      if (test(environment)) found.push(pid);
      bytes += environment.length;
      if (looked % lookedAtOnce !== 0 && bytes < readAtOnceBytes) continue;
      bytes = 0;
      await turn();
    }
    return found;
  } catch {
    return undefined;
  }
}

/** As far as the system says. */
export function foundNow(test: Test): number[] {
  try {
    return processes().filter((pid) => test(environmentOf(pid)));
  } catch {
    return [];
  }
}

/** One that is ending has no environment any more, but files and devices until it waits to be reaped. */
export function holdsSomething(pid: number): boolean {
  try {
    return statOf(pid)?.hasEnded === false;
  } catch {
    return true;
  }
}

/**
 * Whether the process of that name has ended: true only where that is sure. Undefined of one on another machine, in another
 * container or of another user, whose processes this one may not see.
 */
export function isGone(name: string): boolean | undefined {
  const own = ownName?.split("/") ?? [];
  const [boot, pids, clock, user, pid = "", ticks = ""] = name.split("/");
  const isFromHere = [boot, pids, clock, user].every((part, index) => part !== undefined && part === own[index]);
  if (!isFromHere || !/^\d+$/.test(pid)) return undefined;
  try {
    const stat = statOf(Number(pid));
    if (stat !== undefined) return stat.hasEnded || stat.startedTicks !== Number(ticks);
    return isNobody(Number(pid)) ? true : undefined;
  } catch {
    return undefined;
  }
}

/** What can be hidden in `/proc` can still be signalled. */
export function isNobody(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return isAbsent(error);
  }
}

/** Undefined when there is no such process, or none that this user may see; throws when the system does not say. */
export function statOf(pid: number): { readonly hasEnded: boolean; readonly startedTicks: number } | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" "); // the name before may hold anything
    return { hasEnded: /^[ZX]/.test(fields[0] ?? ""), startedTicks: Number(fields[19]) };
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
}

/** Throws when the system does not say. */
function processes(): number[] {
  if (!isOwnProc()) return [];
  return readdirSync("/proc").map(Number).filter(Number.isInteger).reverse(); // those that began last first
}

/** Else its numbers are not those by which this process ends others, or there is none. Throws when the system does not say. */
function isOwnProc(): boolean {
  try {
    return readlinkSync("/proc/self") === String(process.pid);
  } catch (error) {
    if (isAbsent(error)) return false;
    throw error;
  }
}

/**
 * Of what a process may say that its environment is, without end and without any right, so much is read: arguments and environment
 * may have a quarter of a stack of 8 MiB together.
 */
const maxEnvironmentBytes = 2 * 2 ** 20;
const lastRead = Buffer.alloc(maxEnvironmentBytes + 2);
const none = Buffer.alloc(0);

/** Valid until the next is read. Empty of one that has ended or may not be looked at; throws when the system does not say. */
function environmentOf(pid: number): Buffer {
  let file: number | undefined;
  try {
    file = openSync(`/proc/${pid}/environ`, "r");
    let length = 1;
    for (let num = -1; num !== 0 && length <= maxEnvironmentBytes; length += num)
      num = readSync(file, lastRead, length, maxEnvironmentBytes + 1 - length, null);
    lastRead[length] = 0;
    return lastRead.subarray(0, length + 1);
  } catch (error) {
    if (isExhausted(error)) throw error;
    return none;
  } finally {
    if (file !== undefined) closeSync(file);
  }
}

/** What no process before or beside this one is called, on any machine; undefined on other systems than Linux. */
export const ownName: string | undefined = nameOfOwn();

function nameOfOwn(): string | undefined {
  try {
    const stat = isOwnProc() ? statOf(process.pid) : undefined;
    if (stat === undefined) return undefined;
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "latin1").trim();
    const pids = readlinkSync("/proc/self/ns/pid");
    return [boot, pids, ownClock(), process.getuid?.() ?? "", process.pid, stat.startedTicks].join("/");
  } catch {
    return undefined;
  }
}

/** Starts are told by the clock of whoever asks. One for all where a kernel, older than Linux 5.6, knows no others. */
function ownClock(): string {
  try {
    return readlinkSync("/proc/self/ns/time");
  } catch {
    return "";
  }
}
