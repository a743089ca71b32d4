/** Which OCI runtime of the engine runs the containers, and what differs where that is gVisor (DK7). */
import { readFileSync } from "node:fs";
import { z } from "zod";
import { endOfArchive, headerOf } from "../archive/archive-format.ts";

export const EngineInfo = z.object({
  NCPU: z.int().positive(),
  DefaultRuntime: z.string().default(""),
  Runtimes: z.record(z.string(), z.unknown()).default({}),
  SecurityOptions: z.array(z.string()).default([]),
});
export type EngineInfo = z.infer<typeof EngineInfo>;

/** Undefined when the engine has it. */
export function runtimeLacks({ Runtimes }: Pick<EngineInfo, "Runtimes">, runtime?: string): string | undefined {
  if (runtime === undefined || runtime in Runtimes) return undefined;
  const known = Object.keys(Runtimes).map((name) => `'${name}'`);
  return `the Docker engine has no runtime '${runtime}'; it has ${known.join(", ") || "none"}; add it to the engine's runtimes (daemon.json, or dockerd --add-runtime ${runtime}=PATH) and restart the engine, or change docker.runtime`;
}

/** By the name of the runtime, or of its program. */
export function isGvisor(
  { Runtimes, DefaultRuntime }: Pick<EngineInfo, "Runtimes" | "DefaultRuntime">,
  runtime = DefaultRuntime,
): boolean {
  return `${runtime} ${JSON.stringify(Runtimes[runtime] ?? "")}`.includes("runsc");
}

/**
 * gVisor's own threads, and what stands in the kernel for each process of the sandbox, count against the container's limit of
 * tasks: 80 and 8 for each were seen (`ptrace`, two cores). gVisor ends with its sandbox when it reaches the limit.
 */
export const gvisorTasks = (processes: number): number => 256 + 8 * processes;

export const coresRemedy = (runtime = "the default", why: string): string =>
  `runtime '${runtime}' does not change the cores of a container: ${why.split("\n")[0]}; run as root beside the engine with docker.fastPath, or use another docker.runtime`;

/** Whether a process of this machine is what a container was told to run, and not a runtime that runs it inside. */
export function runs(pid: number, argument: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").includes(argument);
  } catch {
    return false;
  }
}

const keptFolder = "/tmp/.treadle-kept";

/** Unpacked at the root before the start: over an empty /tmp gVisor puts one of its own, which no snapshot has. */
export const keptArchive = (): Buffer => {
  const folder = { type: "folder", size: 0, mode: 0o1777, mtimeSeconds: 0, target: "" } as const;
  return Buffer.concat([...["tmp/", "tmp/.treadle-kept/"].map((name) => headerOf({ ...folder, name })), endOfArchive]);
};

/** What the container itself leaves there, by which it is seen whether the engine sees its files. */
export const keptMark = (name: string): string => `${keptFolder}/${name}`;

export const hiddenFiles =
  "a snapshot is of what the Docker engine sees, and its runtime keeps the container's files to itself; give the runtime the argument '--overlay2=none' in the engine's daemon.json";
