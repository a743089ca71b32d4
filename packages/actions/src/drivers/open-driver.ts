import { resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { programRights } from "@treadle/contracts/program-rights";
import { z } from "zod";
import { CgroupDriver, type CgroupDriverOptions, cgroupDriverLacks } from "./cgroup-driver.ts";
import { DockerOptions } from "./docker-options.ts";
import { ProcessDriver } from "./process-driver.ts";
import { checkAuthFile } from "./registry-credentials.ts";
import type { SandboxDriver, SandboxOptions } from "./sandbox.ts";

/** Which drivers may run commands, as keys of a configuration. */
export const driverChoice = {
  /** in order of preference: the first that this machine can, and no other; `process` isolates nothing */
  drivers: z.array(z.enum(["cgroup", "docker", "process"])).min(1),
  /** for the driver `docker` */
  docker: DockerOptions.optional(),
  /** for the driver `cgroup` */
  cgroup: z
    .strictObject({
      /** version 2: the group to work under, which holds no processes; default: its own, such as of a unit with `Delegate=yes` */
      cgroupParent: z.string().startsWith("/", "is an absolute path of this machine").optional(),
      /** what becomes the root of every sandbox, read-only; the system's folders when absent */
      rootFolder: z.string().min(1).optional(),
      /** folders of this machine that sandboxes see, read-only, by where: `{ /testbed: /srv/suite }` */
      folders: z
        .record(z.string(), z.string().startsWith("/", "is an absolute path of this machine"))
        .refine((folders) => Object.keys(folders).every((path) => /^(\/[^/.][^/]*)+$/.test(path)), {
          message: "are named by absolute paths, as sandboxes see them",
        })
        .refine((folders) => Object.keys(folders).every((path) => !/^\/(dev|proc|tmp|work)(\/|$)/.test(path)), {
          message: "are not in /dev, /proc, /tmp and /work, which each sandbox has of its own",
        })
        .optional(),
      /** of the numbers that sandboxes get as users, one each; default: by the number of this process, so that services differ */
      firstUserId: z.int().positive().max(2_000_000_000).optional(),
    })
    .optional(),
} as const;

export type DriverChoice = {
  readonly drivers: readonly ("cgroup" | "docker" | "process")[];
  readonly docker?: DockerOptions | undefined;
  readonly cgroup?: CgroupDriverOptions | undefined;
};

/** With the file that it names as one of the folder. */
export function choiceIn<Choice extends DriverChoice>(folder: string, choice: Choice): Choice {
  const { docker } = choice;
  if (docker?.authFile === undefined) return choice;
  return { ...choice, docker: { ...docker, authFile: resolve(folder, docker.authFile) } };
}

/** For `superRefine` of a configuration with the keys of `driverChoice`. */
export function checkDriverChoice({ drivers, docker }: DriverChoice, context: z.RefinementCtx): void {
  if (drivers.includes("docker") && docker === undefined)
    context.addIssue({ code: "custom", path: ["docker"], message: "the driver 'docker' needs docker.image" });
}

/**
 * The first driver of the list that this machine can, proven by a sandbox that answers. Throws `sandbox.unavailable` with
 * what each of them lacks, and `config.invalid` for a `docker.authFile` that cannot be read.
 */
export async function openDriver(choice: DriverChoice, sandbox: SandboxOptions = {}): Promise<SandboxDriver> {
  const lacking: string[] = [];
  for (const name of choice.drivers) {
    const lacks = await lacksOf(name, choice, sandbox);
    if (lacks !== undefined) {
      lacking.push(`'${name}': ${lacks}`);
      continue;
    }
    const driver = await make(name, choice);
    try {
      const proof = await driver.open(sandbox);
      const { status, exitCode, output } = await proof.holdShell().ask({ program: ":" });
      if (exitCode !== 0) throw new Error(`its sandbox runs nothing: ${output.toString().trim() || status}`);
      await proof.close();
      return driver;
    } catch (error) {
      await driver.close().catch(() => {});
      lacking.push(`'${name}': ${(error as Error).message}`);
    }
  }
  throw new TreadleError(
    "sandbox.unavailable",
    `no driver of the list can be used on this machine; ${lacking.join("; ")}; install what is missing or add 'process' to the list, which isolates nothing`,
  );
}

/**
 * PGR1: where an agent limits this process, commands do not leave its sandboxes, which are as the agent's machine makes them and
 * have no network, where services of the machine listen; unless it allows commands without any.
 */
function refusalOf(
  name: DriverChoice["drivers"][number],
  { docker, cgroup }: DriverChoice,
  { network }: SandboxOptions,
): string | undefined {
  const rights = programRights();
  if (rights === undefined) return undefined;
  const allowing = "start its agent with '--allow-program /bin/sh'";
  const isShellAllowed = rights.programs.includes("/bin/sh");
  if (name === "process" && !isShellAllowed)
    return `it isolates nothing, which node '${rights.node}' does not allow; ${allowing}`;
  if (network !== undefined && !isShellAllowed)
    return `a run may not set 'network' on node '${rights.node}'; leave it out, or ${allowing}`;
  const ofDocker = (["socket", "runtime", "systemCalls", "authFile"] as const).find(
    (key) => docker?.[key] !== undefined,
  );
  const theirs = { cgroup: cgroup && "cgroup", docker: ofDocker && `docker.${ofDocker}`, process: undefined }[name];
  return theirs && `a run may not set '${theirs}' on node '${rights.node}'; leave it out`;
}

async function lacksOf(
  name: DriverChoice["drivers"][number],
  choice: DriverChoice,
  sandbox: SandboxOptions,
): Promise<string | undefined> {
  const refusal = refusalOf(name, choice, sandbox);
  if (refusal !== undefined) return refusal;
  const { docker, cgroup } = choice;
  if (name === "process") return undefined;
  if (name === "cgroup") return cgroupDriverLacks(cgroup);
  if (docker === undefined) return "it needs an image";
  const { dockerDriverLacks } = await import("./docker-engine.ts");
  return dockerDriverLacks(docker.image, docker.socket, docker.runtime);
}

/** A client of Docker is loaded only where one is asked for. */
async function make(name: DriverChoice["drivers"][number], { docker, cgroup }: DriverChoice): Promise<SandboxDriver> {
  if (name === "process") return new ProcessDriver();
  if (name === "cgroup") return new CgroupDriver(cgroup);
  await checkAuthFile(docker?.authFile);
  const { DockerDriver } = await import("./docker-driver.ts");
  return new DockerDriver(docker!);
}
