import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { Trust } from "../../src/control-plane/trust.ts";
import { makeKey, readKey } from "../../src/control-plane/trust-file.ts";

const folder = mkdtempSync(join(tmpdir(), "treadle-trust-"));
afterAll(() => rmSync(folder, { recursive: true }));

const subject = "treadle.command.node.n.1";
const made = { runner: makeKey(), other: makeKey(), n: makeKey(), evil: makeKey() };
const keys = [
  { role: "runner" as const, key: made.runner.publicKey },
  { role: "runner" as const, key: made.other.publicKey },
  { role: "node" as const, key: made.n.publicKey, name: "n" },
  { role: "node" as const, key: made.evil.publicKey, name: "evil" },
];
const pairOf = (name: keyof typeof made) => {
  writeFileSync(join(folder, name), made[name].seed);
  return readKey(join(folder, name));
};
const onlyRunners = (text: string, { role }: { role: string }) => {
  if (role !== "runner") throw new Error("not a runner");
  return text;
};

test("TR2: however many senders other keys have, a command that was heard acts no second time", () => {
  const maxSenders = 5;
  const runner = new Trust(keys, pairOf("runner"), "t");
  const node = new Trust(keys, pairOf("n"), "t", maxSenders);
  const seal = runner.sealKeyOf("node.n", 1, {}, node.prove("node.n", 1, {}));
  const captured = runner.ask(subject, "release", seal).text;
  expect(node.receive(subject, captured, onlyRunners).value).toBe("release");
  const again = () => node.receive(subject, captured, onlyRunners);
  expect(again).toThrow(/again/);
  for (const name of ["evil", "other"] as const) {
    const pair = pairOf(name);
    for (let i = 0; i <= maxSenders; i++) {
      const { text } = new Trust(keys, pair, "t").ask(subject, "release", seal);
      if (name === "evil") expect(() => node.receive(subject, text, onlyRunners)).toThrow(/not a runner/);
      else expect(node.receive(subject, text, onlyRunners).value).toBe("release");
    }
    expect(again).toThrow(/again/);
  }
});

test("TR2: who may not ask for something is not remembered for it", () => {
  const runner = new Trust(keys, pairOf("runner"), "t");
  const node = new Trust(keys, pairOf("n"), "t");
  const seal = runner.sealKeyOf("node.n", 1, {}, node.prove("node.n", 1, {}));
  const { text } = new Trust(keys, pairOf("evil"), "t").ask(subject, "release", seal);
  for (let i = 0; i < 2; i++) expect(() => node.receive(subject, text, onlyRunners)).toThrow(/not a runner/);
});
