import { execFileSync } from "node:child_process";
import { chmodSync, chownSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { Trust } from "../../src/control-plane/trust.ts";
import { makeKey, readKey, readTrust } from "../../src/control-plane/trust-file.ts";

const folder = mkdtempSync(join(tmpdir(), "treadle-trust-"));
afterAll(() => rmSync(folder, { recursive: true }));

const subject = "treadle.command.node.n.1";
const entry = { incarnation: 1, version: 0, body: {} };
const made = { runner: makeKey(), other: makeKey(), n: makeKey(), evil: makeKey() };
const keys = [
  { role: "runner" as const, key: made.runner.publicKey },
  { role: "runner" as const, key: made.other.publicKey },
  { role: "node" as const, key: made.n.publicKey, name: "n" },
  { role: "node" as const, key: made.evil.publicKey, name: "evil" },
];
const options = { file: "t", prefix: "treadle" };
const pairOf = (name: keyof typeof made) => {
  writeFileSync(join(folder, name), made[name].seed, { mode: 0o600 });
  return readKey(join(folder, name));
};
const onlyRunners = (text: string, { role }: { role: string }) => {
  if (role !== "runner") throw new Error("not a runner");
  return text;
};

test("TR2: however many senders other keys have, a command that was heard acts no second time", () => {
  const maxSenders = 5;
  const runner = new Trust(keys, pairOf("runner"), options);
  const node = new Trust(keys, pairOf("n"), { ...options, maxSenders });
  const seal = runner.sealKeyOf("node.n", { ...entry, proof: node.prove("node.n", entry) });
  const captured = runner.ask(subject, "release", seal).text;
  expect(node.receive(subject, captured, onlyRunners).value).toBe("release");
  const again = () => node.receive(subject, captured, onlyRunners);
  expect(again).toThrow(/again/);
  for (const name of ["evil", "other"] as const) {
    const pair = pairOf(name);
    for (let i = 0; i <= maxSenders; i++) {
      const { text } = new Trust(keys, pair, options).ask(subject, "release", seal);
      if (name === "evil") expect(() => node.receive(subject, text, onlyRunners)).toThrow(/not a runner/);
      else expect(node.receive(subject, text, onlyRunners).value).toBe("release");
    }
    expect(again).toThrow(/again/);
  }
});

test("TR2: who may not ask for something is not remembered for it", () => {
  const runner = new Trust(keys, pairOf("runner"), options);
  const node = new Trust(keys, pairOf("n"), options);
  const seal = runner.sealKeyOf("node.n", { ...entry, proof: node.prove("node.n", entry) });
  const { text } = new Trust(keys, pairOf("evil"), options).ask(subject, "release", seal);
  for (let i = 0; i < 2; i++) expect(() => node.receive(subject, text, onlyRunners)).toThrow(/not a runner/);
});

test("TR1: an entry is signed with its version: an older one is no newer for saying so", () => {
  const node = new Trust(keys, pairOf("n"), options);
  const runner = new Trust(keys, pairOf("runner"), options);
  const proof = node.prove("node.n", entry);
  expect(() => runner.sealKeyOf("node.n", { ...entry, proof })).not.toThrow();
  expect(() => runner.sealKeyOf("node.n", { ...entry, version: 1, proof })).toThrow(/not signed by its key/);
});

test("TR4: a refusal comes from whoever was asked, and for its own question alone, however that is sent again", () => {
  const runner = new Trust(keys, pairOf("runner"), options);
  const node = new Trust(keys, pairOf("n"), options);
  const seal = runner.sealKeyOf("node.n", { ...entry, proof: node.prove("node.n", entry) });
  /** What a node with these keys says to this command. */
  const said = (member: Trust, text: string): string => {
    let words = "refused";
    expect(() =>
      member.receive(subject, text, onlyRunners, (sealer) => {
        words = sealer(words);
      }),
    ).toThrow();
    return words;
  };
  const strange = new Trust([], pairOf("n"), options); // trusts nobody
  const its = runner.sealKeyOf("node.n", { ...entry, proof: strange.prove("node.n", entry) });
  const refused = runner.ask(subject, "release", its);
  expect(refused.open(said(strange, refused.text))).toBe("refused");
  const other = new Trust(keys, pairOf("other"), options).ask(subject, "release", its);
  expect(() => refused.open(said(strange, other.text))).toThrow();

  const asked = runner.ask(subject, "release", seal);
  node.receive(subject, asked.text, onlyRunners);
  const command = JSON.parse(asked.text) as object;
  for (const again of [{}, { from: made.evil.publicKey }, { signature: "AAAA" }, { sequence: 7 }]) {
    expect(() => asked.open(said(node, JSON.stringify({ ...command, ...again })))).toThrow(
      /not meant for this process/,
    );
  }
});

test("a list of keys that others may write is refused, or that is another user's, and a key of this user's that others may as much as read", () => {
  const readWith = (name: string, text: string, read: (path: string) => unknown, mode: number): unknown => {
    const path = join(folder, name);
    writeFileSync(path, text);
    chmodSync(path, mode);
    return read(path);
  };
  const trust = `runner ${made.runner.publicKey}\n`;
  for (const mode of [0o600, 0o644, 0o444]) expect(() => readWith("trust", trust, readTrust, mode)).not.toThrow();
  for (const mode of [0o620, 0o602, 0o664, 0o666])
    expect(() => readWith("trust", trust, readTrust, mode)).toThrow(
      new RegExp(`can be written by others than its owner \\(mode '${mode.toString(8)}'\\).*chmod go-w`),
    );
  for (const mode of [0o600, 0o400]) expect(() => readWith("n.nk", made.n.seed, readKey, mode)).not.toThrow();
  for (const mode of [0o640, 0o604, 0o620, 0o666])
    expect(() => readWith("n.nk", made.n.seed, readKey, mode)).toThrow(/open to other users .*chmod 600/);
  const pipe = join(folder, "pipe"); // whose writer could wait until the file is in its place again
  execFileSync("sh", ["-c", 'mkfifo "$1"', "sh", pipe]);
  for (const readIt of [readTrust, readKey]) expect(() => readIt(pipe)).toThrow(/cannot be read: it is no file/);
  if (process.getuid?.() !== 0) return; // only root gives files away
  const others = join(folder, "others");
  writeFileSync(others, trust);
  chownSync(others, 65_534, 65_534);
  chmodSync(others, 0o644);
  expect(() => readTrust(others)).toThrow(/is user '65534's, .*it must be user '0's or root's.*chown 0/);
  const given = join(folder, "given.nk");
  writeFileSync(given, made.n.seed);
  chownSync(given, 65_534, 65_534); // as in a secret of Kubernetes, which its mode gives to whoever reads it
  chmodSync(given, 0o440);
  expect(() => readKey(given)).not.toThrow();
});

test("TR7: what was signed under one prefix counts under no other, whoever signed it", () => {
  const elsewhere = { ...options, prefix: "other" };
  const [here, there] = [new Trust(keys, pairOf("n"), options), new Trust(keys, pairOf("runner"), elsewhere)];
  const proof = here.prove("node.n", entry);
  expect(() => there.sealKeyOf("node.n", { ...entry, proof })).toThrow(/not signed by its key/);
  const words = [crypto.randomUUID()];
  const presence = here.provePresence("node.n", entry.incarnation, words);
  expect(there.isPresent("node.n", entry.incarnation, proof.from, presence)).toBe(false);
  const runner = new Trust(keys, pairOf("runner"), options);
  const kept = { workflow: "w" };
  expect(() => runner.checkRun("run-1", kept, runner.proveRun("run-1", kept))).not.toThrow();
  expect(() => there.checkRun("run-1", kept, runner.proveRun("run-1", kept))).toThrow(/is not what key/);
  const its = new Trust(keys, pairOf("n"), elsewhere);
  const seal = its.prove("node.n", entry).seal;
  const { text } = runner.ask(subject, "release", seal);
  expect(() => its.receive(subject.replace("treadle.", "other."), text, onlyRunners)).toThrow(/not signed/);
});
