import { expect, test } from "vitest";
import { installedLicences } from "../../docs/generate/licences.ts";

/** They ask for their text to be kept, and for nothing of whoever uses what they are of. */
const allowed = new Set([
  "MIT",
  "ISC",
  "Apache-2.0",
  "BSD-2-Clause",
  "BSD-3-Clause",
  "0BSD",
  "BlueOak-1.0.0",
  "Unlicense",
]);

/** `MIT OR GPL-3.0` leaves the choice. */
const mayBeUsed = (licence: string): boolean =>
  licence
    .replace(/^\(|\)$/g, "")
    .split(" OR ")
    .some((choice) => choice.split(" AND ").every((each) => allowed.has(each)));

test("everything that is installed with 'treadle' is under a licence that allows its use", () => {
  const licences = installedLicences();
  expect(licences.size).toBeGreaterThan(60);
  expect([...licences].filter(([, licence]) => !mayBeUsed(licence))).toEqual([]);
});
