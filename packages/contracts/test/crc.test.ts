import fc from "fast-check";
import { expect, test } from "vitest";
import { crc32, crc32c } from "../src/crc.ts";

const digits = Buffer.from("123456789"); // of which the check values of both are published

test("checksums have their published check values, and go on from what came before", () => {
  expect([crc32(digits), crc32c(digits)]).toEqual([0xcbf43926, 0xe3069283]);
  fc.assert(
    fc.property(fc.uint8Array(), fc.uint8Array(), (first, second) => {
      for (const checksum of [crc32, crc32c])
        expect(checksum(second, checksum(first))).toBe(checksum(Buffer.concat([first, second])));
    }),
  );
});
