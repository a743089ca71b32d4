/** The suite that engines of other projects are held to, too, for the shipped ones. */
import { afterAll, describe, test } from "vitest";
import { generationConformance, type TestedGeneration } from "../src/testing/generation-conformance.ts";

export function describeGeneration(
  kind: string,
  lacks: string | undefined,
  create: () => Promise<TestedGeneration>,
): void {
  describe.skipIf(lacks)(`generation by an engine of kind ${kind}${lacks === undefined ? "" : `: ${lacks}`}`, () => {
    const { cases, close } = generationConformance(create);
    for (const { name, run } of cases) test(name, run);
    afterAll(close);
  });
}
