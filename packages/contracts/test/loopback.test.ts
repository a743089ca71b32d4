import { isIP } from "node:net";
import fc from "fast-check";
import { expect, test } from "vitest";
import { isLoopback } from "../src/index.ts";

test("loopback is 127.0.0.0/8, ::1 and localhost, in brackets or not, and nothing else", () => {
  for (const host of ["localhost", "127.0.0.1", "127.255.255.255", "::1", "[::1]"]) expect(isLoopback(host)).toBe(true);
  for (const host of ["0.0.0.0", "::", "localhost.example", "127.0.0.1.example", "127.1", "10.127.0.0.1", ""])
    expect(isLoopback(host)).toBe(false);
  const octet = fc.oneof(fc.integer({ min: 0, max: 300 }).map(String), fc.constantFrom("00", "01", ""));
  fc.assert(
    fc.property(fc.tuple(fc.constantFrom("127", "126", "1270"), octet, octet, octet), (octets) => {
      const host = octets.join(".");
      expect(isLoopback(host)).toBe(isIP(host) === 4 && host.startsWith("127."));
    }),
  );
});
