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

  test("docker needs an image", () => {
    const issues = (config: object) =>
      ActionServiceConfig.safeParse(config).error?.issues.map(({ message }) => message);
    expect(issues({ drivers: ["docker"] })).toEqual(["the driver 'docker' needs docker.image"]);
    expect(issues({ drivers: ["docker"], docker: { image: "any" } })).toBe(undefined);
  });
});
