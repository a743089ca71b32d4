import { Prompt } from "@treadle/contracts";
import { expect, test } from "vitest";
import { z } from "zod";
import { locateSchema } from "../../../src/runner/cluster/workflow-references.ts";
import * as schemas from "../../support/schemas.ts";

const workflowModule = { url: "file:///workflow/run.ts", exports: schemas };

test("a schema is where it says itself, else where the workflow's module or the contracts export it", () => {
  const { href } = new URL("../../support/schemas.ts", import.meta.url);
  expect(locateSchema("c", schemas.Placed, undefined)).toEqual({ module: href, exportName: "Placed" });
  expect(locateSchema("c", schemas.Counted, workflowModule)).toEqual({
    module: workflowModule.url,
    exportName: "Counted",
  });
  expect(locateSchema("c", Prompt, workflowModule)).toEqual({ module: "@treadle/contracts", exportName: "Prompt" });
});

test.each([
  ["made on the spot", z.object({ id: z.string() })],
  ["derived from one that is exported", schemas.Counted.extend({ more: z.string() })],
  ["derived from one that says where it is", schemas.Placed.extend({ more: z.string() })],
  ["that says half of where it is", schemas.Counted.meta({ module: import.meta.url })],
])("a schema %s is refused, with the remedy", (_, schema) => {
  expect(() => locateSchema("things", schema, workflowModule)).toThrow(
    expect.objectContaining({
      code: "workflow.invalid",
      message:
        "the schema of channel 'things' cannot be found by the workers that put into it; export it from the workflow's module, or add '.meta({ module: import.meta.url, exportName: \"…\" })' where another module exports it",
    }),
  );
});
