/**
 * `npm run test:node -- 22 24`: what depends on Node itself, tested by other versions of it.
 *
 * Each comes from npm's registry into `~/.cache/treadle`. Vitest and every process of a test run by it: unit tests first,
 * then whole runs from sources and as compiled.
 */
import { spawn } from "node:child_process";
import { delimiter, dirname, join } from "node:path";
import { projectRoot } from "../support/project.ts";
import { secondNode } from "../support/second-node.ts";

const units = ["contracts", "core", "transport", "runtime", "engines", "cli"].map((name) => `packages/${name}/test`);
const wholeRuns = ["test/e2e/node-versions.test.ts", "test/fault/worker-deaths.test.ts"];

/** Starts a program of the project by that Node, which processes find as `node`, too; its exit code. */
function byNode(program: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): Promise<number | null> {
  const PATH = `${dirname(program)}${delimiter}${process.env["PATH"]}`;
  const child = spawn(program, args, { cwd: projectRoot, stdio: "inherit", env: { ...process.env, PATH, ...env } });
  return new Promise((resolve, reject) => child.on("error", reject).on("close", resolve));
}

async function testBy(major: number): Promise<boolean> {
  const program = await secondNode(major);
  if (program === undefined) {
    process.stderr.write(
      `Node ${major} is not to be had: npm's registry has none for this machine, or is out of reach\n`,
    );
    return false;
  }
  const vitest = [join(projectRoot, "node_modules/vitest/vitest.mjs"), "run", "--config", "test/vitest.config.ts"];
  const turns = [
    { what: "unit tests", args: [...vitest, ...units], env: {} },
    { what: "whole runs from sources", args: [...vitest, ...wholeRuns], env: { TREADLE_COMPILED: "" } },
    { what: "a build", args: [join(projectRoot, "node_modules/turbo/bin/turbo"), "run", "build"], env: {} },
    { what: "whole runs as compiled", args: [...vitest, ...wholeRuns], env: { TREADLE_COMPILED: "1" } },
  ];
  for (const { what, args, env } of turns) {
    process.stdout.write(`\nNode ${major}: ${what}\n`);
    if ((await byNode(program, args, { ...env, TREADLE_NODE: program })) !== 0) {
      process.stderr.write(`Node ${major}: ${what} failed\n`);
      return false;
    }
  }
  return true;
}

const majors = process.argv.slice(2).map(Number);
if (majors.length === 0 || !majors.every((major) => Number.isInteger(major) && major >= 20)) {
  process.stderr.write("name versions of Node from 20 on, as in 'npm run test:node -- 22 24'\n");
  process.exit(2);
}
const failed: number[] = [];
for (const major of majors) if (!(await testBy(major))) failed.push(major);
process.stdout.write(`\n${majors.length - failed.length} of ${majors.length} versions of Node passed\n`);
if (failed.length > 0) process.exitCode = 1;
