import { afterEach, describe, expect, test, vi } from "vitest";
import { openDriver } from "../src/index.ts";
import { ActionServiceConfig } from "../src/serve.ts";

afterEach(() => {
  vi.unstubAllEnvs();
});

describe("drivers", () => {
  const sandbox = { memoryBytes: 64 * 2 ** 20, maxProcesses: 16 };
  const docker = { image: "any", socket: "unix:///nowhere/docker.sock" };
  test("are taken in the order of the list, as far as the machine can", async () => {
    vi.stubEnv("PATH", "/nowhere");
    const driver = await openDriver({ drivers: ["docker", "cgroup", "process"], docker }, sandbox);
    expect(driver.name).toBe("process");
    await driver.close();
  });

  test("that are all impossible are refused with what each lacks, and the remedy", async () => {
    vi.stubEnv("PATH", "/nowhere");
    await expect(openDriver({ drivers: ["cgroup", "docker"], docker }, sandbox)).rejects.toMatchObject({
      code: "sandbox.unavailable",
      message: expect.stringMatching(
        /'cgroup': .*; 'docker': no Docker engine answers at '.*'.*apt-get install docker.io.*; install .* add 'process' to the list/,
      ),
    });
  });

  test.each([
    ["cgroup", { cgroup: { cgroupParent: "/sys/fs/cgroup" } }, {}],
    ["docker.socket", { docker }, {}],
    ["docker.systemCalls", { docker: { image: "any", systemCalls: "engine" as const } }, {}],
    ["docker.authFile", { docker: { image: "any", authFile: "auth.json" } }, {}],
    ["network", { docker: { image: "any" } }, { network: "host" as const }],
  ] as const)("PGR1: under an agent '%s' is refused, as sandboxes are the agent's", async (key, given, more) => {
    const rights = { node: "a", project: "/srv", interpreters: [], programs: [], models: [], variables: [] };
    vi.stubEnv("TREADLE_PROGRAM_RIGHTS", JSON.stringify(rights));
    const drivers =
      key === "cgroup"
        ? (["cgroup"] as const)
        : key === "network"
          ? (["cgroup", "docker"] as const)
          : (["docker"] as const);
    const refused = openDriver({ drivers, ...given }, { ...sandbox, ...more }).catch((error: Error) => error.message);
    expect(await refused).toContain(`a run may not set '${key}' on node 'a'`);
  });

  test("docker needs an image", () => {
    const issues = (config: object) =>
      ActionServiceConfig.safeParse(config).error?.issues.map(({ message }) => message);
    expect(issues({ drivers: ["docker"] })).toEqual(["the driver 'docker' needs docker.image"]);
    expect(issues({ drivers: ["docker"], docker: { image: "any" } })).toBe(undefined);
  });
});

test("folders that sandboxes see have places of their own there", () => {
  const issuesOf = (folders: object): string => {
    const { error } = ActionServiceConfig.safeParse({ cgroup: { folders } });
    return error?.issues.map(({ path, message }) => `${path.join(".")}: ${message}`).join() ?? "";
  };
  expect(issuesOf({ "/testbed": "/srv/suite", "/opt/a/b": "/" })).toBe("");
  for (const path of ["testbed", "/", "/a/../b", "/a//b", "/a/"])
    expect(issuesOf({ [path]: "/srv" })).toMatch(/are named by absolute paths, as sandboxes see them/);
  expect(issuesOf({ "/a": "srv" })).toBe("cgroup.folders./a: is an absolute path of this machine");
  for (const path of ["/tmp", "/work/a", "/proc", "/dev"])
    expect(issuesOf({ [path]: "/srv" })).toMatch(/are not in \/dev/);
});
