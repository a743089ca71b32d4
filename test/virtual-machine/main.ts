/**
 * `npm run test:cgroup2 [-- files and other words for vitest]`: what runs commands in control groups and in containers, on
 * control groups of version 2, and the shipped unit under systemd, in an emulated machine.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { projectRoot } from "../support/project.ts";
import { testInMachine } from "./test-in-machine.ts";
import { hasSystemd, machineLacks } from "./virtual-machine.ts";

const files = [
  "drivers",
  "held-shell",
  "forgery",
  "hostile",
  "resource-usage",
  "service-process",
  "nobody-stops-the-others",
  "docker-driver",
].map((name) => `packages/actions/test/${name}.test.ts`);
const underSystemd = ["test/virtual-machine/unit-serves-actions.inside.ts"];

function unitLacks(): string | undefined {
  if (!hasSystemd()) return "systemd is not installed here; install it (Debian: apt-get install systemd)";
  if (!existsSync(join(projectRoot, "packages/cli/dist"))) return "nothing is built; run 'npm run build'";
  if (/^\/(home|root|tmp)\//.test(projectRoot))
    return `'${projectRoot}' is hidden from it; take a checkout that is not below /home, /root or /tmp`;
  return undefined;
}

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
  const without = systemd ? unitLacks() : undefined;
  if (without !== undefined) {
    process.stderr.write(`the unit was not run under systemd: ${without}\n`);
    process.exitCode = 1;
    continue;
  }
  const { exitCode } = await testInMachine(["--reporter=verbose", ...words], {
    limitMs: 2 * 3_600_000,
    systemd,
    onOutput: (text) => void process.stdout.write(text),
  });
  if (exitCode !== 0) process.exitCode = exitCode;
}
