/**
 * `npm run test:cgroup2 [-- files and other words for vitest]`: what runs commands in control groups and in containers, on
 * control groups of version 2, and the shipped unit under systemd, in an emulated machine.
 */
import { testInMachine } from "./test-in-machine.ts";
import { hasSystemd, machineLacks } from "./virtual-machine.ts";

const files = ["drivers", "held-shell", "forgery", "hostile", "resource-usage", "docker-driver"].map(
  (name) => `packages/actions/test/${name}.test.ts`,
);
const underSystemd = ["test/virtual-machine/unit-serves-actions.inside.ts"];

const lacks = await machineLacks();
if (lacks !== undefined) {
  process.stderr.write(`no machine can be emulated here: ${lacks}\n`);
  process.exit(1);
}
const asked = process.argv.slice(2);
const isUnit = (word: string): boolean => underSystemd.includes(word);
const turns =
  asked.length > 0
    ? [{ words: asked, systemd: asked.some(isUnit) }]
    : [
        { words: files, systemd: false },
        { words: underSystemd, systemd: true },
      ];
for (const { words, systemd } of turns) {
  if (systemd && !hasSystemd()) {
    process.stderr.write("skipped: the unit under systemd, which is not installed here\n");
    continue;
  }
  const { exitCode } = await testInMachine(["--reporter=verbose", ...words], {
    limitMs: 2 * 3_600_000,
    systemd,
    onOutput: (text) => void process.stdout.write(text),
  });
  if (exitCode !== 0) process.exitCode = exitCode;
}
