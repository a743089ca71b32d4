import fc from "fast-check";
import { expect, test } from "vitest";
import { relayTarget } from "../src/relay/relay-target.ts";

const ports = { depot: { host: "127.0.0.1", port: 4 } };
const inherited = Object.getOwnPropertyNames(Object.prototype);

test("a relay dials its ports by their names, sockets beside its own, and nothing that a name could trick it into", () => {
  const names = fc.oneof(
    fc.constantFrom("depot", "rollout-0-1", "relay", "../x", "a/b", "", ...inherited),
    fc.string(),
  );
  fc.assert(
    fc.property(names, (name) => {
      const isName = /^[A-Za-z0-9_-]{1,100}$/.test(name);
      const port = name === "depot" ? ports.depot : undefined;
      expect(relayTarget(name, { ports, path: undefined })).toEqual(port);
      const beside = isName && name !== "relay" ? { path: `/run/x/${name}` } : undefined;
      expect(relayTarget(name, { ports, path: "/run/x/relay" })).toEqual(port ?? beside);
    }),
  );
});
