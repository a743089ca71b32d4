import { expect, onTestFinished, test } from "vitest";
import { ContainerDisks } from "../src/drivers/container-disks.ts";
import { DiskGuard, reserveOf } from "../src/drivers/disk-guard.ts";
import type { DockerEngine } from "../src/drivers/docker-engine.ts";

const gibibyte = 2 ** 30;

test("CG12 where the disk has no room left, the sandbox that wrote most is lost, one at a time, until there is some", async () => {
  const totalBytes = 100 * gibibyte;
  const written = new Map([
    ["small", 1],
    ["large", 9],
    ["larger", 20],
  ]);
  let freeBytes = 50 * gibibyte;
  const ended: string[] = [];
  const guard = new DiskGuard(async () => ({ freeBytes, totalBytes }), 5);
  const unguards = [...written].map(([name, bytes]) =>
    guard.guard({
      writtenBytes: async () => bytes * gibibyte,
      end: async (why) => {
        ended.push(name);
        expect(why).toMatch(/^the disk of its machine is full: it has \d+ bytes left, and .* wrote most, \d+ bytes$/);
        if (name === "large") freeBytes += 9 * gibibyte;
      },
    }),
  );
  onTestFinished(() => {
    for (const unguard of unguards) unguard();
  });
  await new Promise((resolve) => setTimeout(resolve, 40));
  expect(ended).toEqual([]);
  freeBytes = reserveOf({ freeBytes, totalBytes }) - 1;
  await expect.poll(() => ended).toEqual(["larger", "large"]);
  await new Promise((resolve) => setTimeout(resolve, 40));
  expect(ended).toEqual(["larger", "large"]);
});

test("DK6 an engine is asked by one look at a time, however containers come and go", async () => {
  let looking = 0;
  let most = 0;
  let looks = 0;
  const engine = {
    docker: { listContainers: async () => [] },
    call: async (_: string, answer: Promise<unknown>) => {
      looks++;
      most = Math.max(most, ++looking);
      await new Promise((resolve) => setTimeout(resolve, 10));
      looking--;
      return answer;
    },
  } as unknown as DockerEngine;
  const disks = new ContainerDisks(engine, "session", 5);
  const watched = { limitBytes: 1, folders: [], exceeded: () => {} };
  for (let round = 0; round < 20; round++) {
    const unwatch = disks.watch(`c${round}`, watched);
    await new Promise((resolve) => setTimeout(resolve, 8));
    unwatch();
    disks.watch(`d${round}`, watched)();
  }
  const unwatch = disks.watch("last", watched);
  await new Promise((resolve) => setTimeout(resolve, 100));
  unwatch();
  const before = looks;
  await new Promise((resolve) => setTimeout(resolve, 60));
  expect([most, looks - before]).toEqual([1, 0]);
});
