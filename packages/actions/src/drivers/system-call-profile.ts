/**
 * The list of `system-calls.ts` for a Docker Engine, which compiles it for the machine that it is on.
 *
 * SC4 commands in containers make the calls that commands of `CgroupDriver` may make, whatever the engine's own profile is: those of
 *    engines before version 25 allow io_uring, sockets to the hypervisor, and calls of 32 bits. A call by another architecture's
 *    table ends its thread there (SIGSYS), and one that is newer than the list is answered with ENOSYS, as in SC1.
 */
import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import type { DockerOptions } from "./docker-options.ts";
import { type EngineInfo, isGvisor } from "./docker-runtime.ts";
import {
  type Architecture,
  absentCalls,
  allowedCalls,
  architectures,
  type Condition,
  conditions,
} from "./system-calls.ts";

type Options = Pick<z.infer<typeof DockerOptions>, "systemCalls" | "runtime">;

type Rule = {
  readonly names: readonly string[];
  readonly action: "SCMP_ACT_ALLOW" | "SCMP_ACT_ERRNO";
  readonly errnoRet?: number;
  readonly args?: readonly {
    readonly index: number;
    readonly value: number;
    readonly valueTwo?: number;
    readonly op: string;
  }[];
};

const enosys = 38;

/** As `docker run --security-opt seccomp=FILE` reads it. Names that a machine's architecture lacks count for nothing there. */
export function systemCallProfile(): string {
  const listed = Object.keys(architectures).flatMap((name) => [...allowedCalls(name as Architecture).keys()]);
  const names = [...new Set(listed)];
  const syscalls: Rule[] = [
    { names: names.filter((name) => conditions[name] === undefined), action: "SCMP_ACT_ALLOW" },
    ...Object.entries(conditions).flatMap(([name, condition]) => rulesOf(name, condition)),
    { names: [...absentCalls.keys()], action: "SCMP_ACT_ERRNO", errnoRet: enosys },
  ];
  const archMap = Object.values(architectures).map(({ engine }) => ({ architecture: engine, subArchitectures: [] }));
  return JSON.stringify({ defaultAction: "SCMP_ACT_ERRNO", archMap, syscalls });
}

function rulesOf(name: string, condition: Condition): Rule[] {
  const allow = (arg: { value: number; valueTwo?: number; op: string }): Rule => ({
    names: [name],
    action: "SCMP_ACT_ALLOW",
    args: [{ index: 0, ...arg }],
  });
  if ("hasNoneOf" in condition) return [allow({ value: condition.hasNoneOf, valueTwo: 0, op: "SCMP_CMP_MASKED_EQ" })];
  return condition.isOneOf.map((value) => allow({ value, op: "SCMP_CMP_EQ" }));
}

/** Of a container. gVisor makes none of a command's calls to the machine's kernel, and takes no profile. */
export function securityOptionsOf(info: EngineInfo, { systemCalls, runtime }: Options): string[] {
  const usual = "no-new-privileges";
  if (systemCalls === "engine" || isGvisor(info, runtime)) return [usual];
  if (!info.SecurityOptions.some((option) => option.startsWith("name=seccomp")))
    throw new TreadleError(
      "sandbox.unavailable",
      "the Docker engine filters no system calls ('docker info' names no seccomp among its security options); use an engine and a kernel with seccomp, or leave the calls to the engine with docker.systemCalls: engine",
    );
  return [usual, `seccomp=${systemCallProfile()}`];
}
