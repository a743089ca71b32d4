import { expect, test } from "vitest";
import { ContainerCores } from "../src/drivers/container-cores.ts";

test("DK2 the cores of a command that could not begin are not those of the next one", async () => {
  const told: string[] = [];
  let fails = true;
  const cores = new ContainerCores(undefined, async (list) => {
    if (fails) throw new Error("the engine is gone");
    told.push(list);
  });
  await expect(cores.hold([0, 2])).rejects.toThrow("the engine is gone");
  fails = false;
  const release = await cores.hold([1]);
  expect(told).toEqual(["1"]);
  release();
  await cores.hold([3]);
  expect(told).toEqual(["1", "3"]);
});
