import type { Readable } from "node:stream";
import { TreadleError } from "@treadle/contracts";
import type { AllowList } from "../network/allow-list.ts";
import type { HeldShell } from "./held-shell.ts";
import type { CheckedArchive, PackOptions } from "./sandbox-archive.ts";

/** What runs commands of a trajectory. */
export interface SandboxDriver {
  readonly name: string;
  /** in words, what separates a command from the host and from other sandboxes */
  readonly isolation: string;
  /** Why it can hold no limit on a sandbox's files (on that host, where there are many); undefined when it can. */
  diskLacks(node?: string): string | undefined;
  /** Throws `sandbox.failed`, and what `signal` was aborted with: nothing is left of a sandbox that was begun. */
  open(options?: SandboxOptions, signal?: AbortSignal): Promise<Sandbox>;
  /** Ends every sandbox and leaves nothing behind. */
  close(): Promise<void>;
}

export type SandboxOptions = {
  /** all its processes together; ignored by drivers that cannot */
  readonly memoryBytes?: number | undefined;
  readonly maxProcesses?: number | undefined;
  /** that its files on disk may take; a driver that cannot hold it refuses it. `cgroup`: in /work, the file system's own
   * included; `docker`: in all folders, and what is beyond it is seen only after seconds */
  readonly diskBytes?: number | undefined;
  /** none when absent */
  readonly network?: SandboxNetwork | undefined;
  /** its files, instead of those of an empty sandbox; of the same driver, and not dropped */
  readonly from?: Snapshot | undefined;
  /** what a driver cannot give of it, it refuses */
  readonly container?: ContainerOptions | undefined;
  /** the host on which it is to be; ignored by drivers of one machine */
  readonly node?: string | undefined;
};

/** The machine's own, its loopback included (in Docker, the engine's bridge), or through a proxy to what each list allows. */
export type SandboxNetwork = "host" | readonly AllowList[];

export type ContainerOptions = {
  /** the driver's own when absent */
  readonly image?: string | undefined;
  /** as the image knows it: a name, a number, or `user:group` */
  readonly user?: string | undefined;
  /** where commands begin, and relative paths; default /work */
  readonly workingFolder?: string | undefined;
};

/** Throws `sandbox.unavailable` where a driver cannot hold the limit that was asked for. */
export function refuseDisk(driver: SandboxDriver, { diskBytes }: SandboxOptions): void {
  const lacks = driver.diskLacks();
  if (diskBytes === undefined || lacks === undefined) return;
  throw new TreadleError(
    "sandbox.unavailable",
    `the driver '${driver.name}' cannot hold a limit of '${diskBytes}' bytes on files: ${lacks}; or give no limit`,
  );
}

/** Throws `sandbox.unavailable` where a driver cannot give what was asked for; without images it may give some of it. */
export function refuseContainer(
  driver: string,
  { container }: SandboxOptions,
  given: readonly (keyof ContainerOptions)[] = [],
): void {
  const asked = Object.entries(container ?? {}).filter(
    ([key, value]) => value !== undefined && !given.includes(key as keyof ContainerOptions),
  );
  if (asked.length === 0) return;
  const [key, value] = asked[0]!;
  throw new TreadleError(
    "sandbox.unavailable",
    `the driver '${driver}' has no images: ${key} '${value}' was asked for; leave it out, or serve with the driver 'docker'`,
  );
}

/** One trajectory's environment: its files stay from command to command, its processes do not. */
export interface Sandbox {
  readonly id: string;
  /** Why it is over with all its files, though nobody closed it; undefined while it is not. */
  readonly loss: string | undefined;
  /** As its commands see it: for what is kept between them beside their own files. Made by who needs it. */
  readonly stateFolder: string;
  /** of all its processes and files in memory; undefined where the driver cannot tell */
  usedBytes(): number | undefined;
  /** Ends with everything the command started; never rejects because of what the command did. */
  exec(request: ExecRequest): Promise<ExecResult>;
  /** A shell that is kept for many actions; it starts with the first, and ends with the sandbox. */
  holdShell(): HeldShell;
  /** Paths are relative to the working folder of the sandbox. Throw `sandbox.failed`. */
  writeFile(path: string, data: string | Uint8Array): Promise<void>;
  readFile(path: string, maxBytes?: number): Promise<Buffer>;
  /**
   * Puts a folder or file there. Nothing is written where it fails, but into a folder that was there before: its files are joined,
   * those of the same names replaced.
   */
  unpack(path: string, archive: CheckedArchive, signal: AbortSignal): Promise<void>;
  /** An archive of a folder or file, for an `ArchiveFilter`; what `take` throws ends it, and is thrown. */
  pack(path: string, options: PackOptions): Promise<void>;
  /**
   * Its files as they are. Throws `action.invalid` while a command runs, and beyond `maxBytes`; commands that come meanwhile
   * wait.
   */
  snapshot(options: SnapshotOptions): Promise<Snapshot>;
  close(): Promise<void>;
}

export type SnapshotOptions = { readonly maxBytes: number; readonly signal?: AbortSignal | undefined };

/** A copy of a sandbox's files, from which any number of others begin. It outlives the sandbox, not the driver. */
export interface Snapshot {
  /** that it takes of the machine's disk */
  readonly bytes: number;
  /** why it is gone, though nobody dropped it; absent where that cannot be */
  readonly loss?: string | undefined;
  /** the host that has it, on which alone a sandbox can begin with it; absent where there is one machine */
  readonly node?: string | undefined;
  drop(): Promise<void>;
}

/** What a snapshot of too many files is refused with. */
export const tooLarge = (maxBytes: number): TreadleError =>
  new TreadleError(
    "action.invalid",
    `the files of the sandbox take more than the ${maxBytes} bytes that a snapshot may still have; remove some, drop snapshots, or raise limits.snapshotMib`,
  );

export type ExecRequest = {
  readonly command: readonly [program: string, ...args: string[]];
  /** the whole environment, but for PATH, HOME and LANG; nothing of the host's is passed on */
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** a stream stays open, and what comes later reaches the command, until it ends */
  readonly stdin?: string | Uint8Array | Readable | undefined;
  /** core numbers the command may use; all when absent */
  readonly cores?: readonly number[] | undefined;
  readonly timeoutMs?: number | undefined;
  /** between SIGTERM and SIGKILL */
  readonly graceMs?: number | undefined;
  /** of stdout and stderr together */
  readonly maxOutputBytes?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onOutput?: ((stream: "stdout" | "stderr", chunk: Buffer) => void) | undefined;
  /** false: what `onOutput` was given is not in the result as well */
  readonly keepsOutput?: boolean | undefined;
  /** called when the command runs, with what signals it and everything that it started; once it has ended, that does nothing */
  readonly onStart?: ((signal: (name: CommandSignal) => void) => void) | undefined;
};

/** What may be sent to a command. */
export const commandSignals = [
  "SIGINT",
  "SIGTERM",
  "SIGKILL",
  "SIGHUP",
  "SIGQUIT",
  "SIGUSR1",
  "SIGUSR2",
  "SIGSTOP",
  "SIGCONT",
] as const;
export type CommandSignal = (typeof commandSignals)[number];

/** Why a command ended. `killed`: by a signal that was not ours. */
export type ExecStatus = "exited" | "timeout" | "output-limit" | "out-of-memory" | "cancelled" | "killed";

export type ExecResult = {
  readonly status: ExecStatus;
  /** null unless it exited by itself */
  readonly exitCode: number | null;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly seconds: number;
};

/** What a shell answers for a command that does not exist. */
const notFoundCode = 127;

/** Its time says nothing of its kind's: it was ended, or its command does not exist. */
export const isCutShort = ({ status, exitCode }: Pick<ExecResult, "status" | "exitCode">): boolean =>
  status !== "exited" || exitCode === notFoundCode;

export const defaultLimits = { timeoutMs: 60_000, graceMs: 1000, maxOutputBytes: 8 * 2 ** 20 } as const;

/** Throws `action.invalid` for what no process can be told, whatever the driver. */
export function refuseUnspeakable({ command, environment = {} }: Pick<ExecRequest, "command" | "environment">): void {
  const shown = (text: string): string => text.replaceAll("\0", "\\0").slice(0, 100);
  const problems = [
    ...command.filter((word) => word.includes("\0")).map((word) => `command: '${shown(word)}' holds a zero byte`),
    ...Object.entries(environment).flatMap(([name, value]) => [
      ...(name === "" || /[=\0]/.test(name)
        ? [`environment: '${shown(name)}' is no name; give one without '=' and zero bytes`]
        : []),
      ...(value.includes("\0") ? [`environment.${shown(name)}: '${shown(value)}' holds a zero byte`] : []),
    ]),
  ];
  if (problems.length > 0) throw new TreadleError("action.invalid", problems.join("; "), { details: { problems } });
}

/** What every command sees unless it says otherwise. */
export const baseEnvironment = { PATH: "/usr/local/bin:/usr/bin:/bin", HOME: "/tmp", LANG: "C.UTF-8" } as const;
