import { ComponentName } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { parseAddress } from "../src/link/address.ts";
import { readOpening, readRelayLine, relayTarget } from "../src/relay/relay-target.ts";

const ports = { depot: { host: "127.0.0.1", port: 4 } };
const inherited = Object.getOwnPropertyNames(Object.prototype);

test("a relay dials its ports by their names, sockets beside its own, and nothing that a name could trick it into", () => {
  const names = fc.oneof(
    fc.constantFrom("depot", "rollout-0-1", "rollout.v2-0-1", "a..b", "relay", "../x", "..", ".", ".x", "a/b", ""),
    fc.constantFrom(...inherited),
    fc.string({ unit: fc.constantFrom("a", "B", "7", ".", "-", "_", "/", "\0") }),
    fc.string(),
  );
  fc.assert(
    fc.property(names, (name) => {
      const isName = ComponentName.safeParse(name).success;
      const port = name === "depot" ? ports.depot : undefined;
      expect(relayTarget(name, { ports, path: undefined })).toEqual(port);
      const beside = isName && name !== "relay" ? { path: `/run/x/${name}` } : undefined;
      expect(relayTarget(name, { ports, path: "/run/x/relay" })).toEqual(port ?? beside);
    }),
  );
});

test("a component's name may have dots, in an address, in the line to a relay and in what relays ask of each other; a member's, which is a word of a subject, has none", () => {
  const proof = "0".repeat(64);
  const tunnel = crypto.randomUUID();
  const openingOf = (from: string, target: string) => readOpening(JSON.stringify({ tunnel, target, from, proof }));
  for (const target of ["rollout-0-0", "rollout.v2-0-0", "a..b-0-0", "x."]) {
    expect(parseAddress(`relay:node-a/${target}`)).toEqual({ kind: "relay", member: "node-a", target });
    expect(readRelayLine(`node-a ${target}`)).toEqual({ to: "node-a", target });
    expect(openingOf("node-a", target)).toMatchObject({ target });
    expect(() => parseAddress(`relay:node.a/${target}`)).toThrow(/is not of the form/);
    expect(readRelayLine(`node.a ${target}`)).toBeUndefined();
    expect(openingOf("node.a", target)).toBeUndefined();
  }
  for (const target of ["", ".", "..", ".x", "../x", "a/b", "a b"]) {
    expect(() => parseAddress(`relay:node-a/${target}`)).toThrow(/is not of the form/);
    expect(readRelayLine(`node-a ${target}`)).toBeUndefined();
    expect(openingOf("node-a", target)).toBeUndefined();
  }
});
