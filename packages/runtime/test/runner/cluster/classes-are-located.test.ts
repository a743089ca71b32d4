import { expect, test } from "vitest";
import { loadWorkerClass } from "../../../src/author/module-loader.ts";
import type { AnyWorkerClass } from "../../../src/author/worker.ts";
import { Worker } from "../../../src/author/worker.ts";
import { locateClass } from "../../../src/runner/cluster/workflow-references.ts";

class ShippedWorker extends Worker {
  static override readonly module: string = "file:///shipped.ts";
}
class OwnWorker extends ShippedWorker {}
const ofWorkflow = (exports: Record<string, unknown>) => ({ url: "file:///run.ts", exports });
const asClass = (each: unknown) => each as AnyWorkerClass;

test("a class that extends a shipped one is found where the workflow exports it, not where its parent is", () => {
  expect(locateClass(asClass(ShippedWorker), ofWorkflow({}))).toEqual({
    module: "file:///shipped.ts",
    exportName: "ShippedWorker",
  });
  expect(locateClass(asClass(OwnWorker), ofWorkflow({ Mine: OwnWorker }))).toEqual({
    module: "file:///run.ts",
    exportName: "Mine",
  });
});

test("one that the workflow does not export is looked for beside its parent, and one that says nothing is refused", () => {
  expect(locateClass(asClass(OwnWorker), ofWorkflow({ ShippedWorker }))).toEqual({
    module: "file:///shipped.ts",
    exportName: "OwnWorker",
  });
  class LonelyWorker extends Worker {}
  expect(() => locateClass(asClass(LonelyWorker), ofWorkflow({}))).toThrow(
    "worker class 'LonelyWorker' cannot be found by its processes; export it from the workflow's module",
  );
});

test("a class of another copy of Treadle is told so, and nothing else is taken for one", () => {
  const copy = { Worker: class Worker {} };
  class ForeignWorker extends copy.Worker {}
  class OtherWorker extends ForeignWorker {}
  for (const each of [ForeignWorker, OtherWorker]) {
    expect(() => locateClass(asClass(each), ofWorkflow({ each }))).toThrow(
      `worker class '${each.name}' extends the Worker of another copy of Treadle`,
    );
  }
  class PlainWorker {}
  expect(() => locateClass(asClass(PlainWorker), ofWorkflow({}))).toThrow("cannot be found by its processes");
});

test("a process that does not find a subclass in its parent's module says where to export it", async () => {
  const missing = loadWorkerClass(import.meta.resolve("../../../src/author/worker.ts"), "OwnWorker");
  await expect(missing).rejects.toThrow("export a class that extends another module's from the workflow's module");
});
