/** The command line of Treadle. Exit codes: 0 done, 1 failed, 2 misuse, 3 a node's name is taken, 130 ended by
 *  the user. */
import { checkPlatform, TreadleError } from "@treadle/contracts";
import { CommanderError } from "commander";
import { createProgram } from "./program.ts";

// What Treadle writes is its owner's alone; so is what workers' code and the programs that it starts write, which inherit this.
process.umask(0o077);

/** One of its own: whoever restarts a node agent that ended must not restart this one (`deploy/systemd`). */
const nameTakenCode = 3;

const [first, second] = process.argv.slice(2).filter((word) => !word.startsWith("-"));

/** What they do matters more than what they say of it, which a full disk or a reader that has gone may keep them from. */
const works = ["run", "resume", "multiplex", "node", "pool start", "actions serve"];
const isAtWork = works.some((work) => work === first || work === `${first} ${second}`);
for (const stream of [process.stdout, process.stderr])
  stream.on("error", (error: NodeJS.ErrnoException) => {
    if (isAtWork) return;
    if (error.code !== "EPIPE") throw error;
    process.exit(); // whoever reads no more, as `head`, wants no more
  });

const program = await createProgram(first === "help" ? second : first);

try {
  checkPlatform(process);
  await program.parseAsync();
} catch (error) {
  process.exitCode = exitCodeOf(error);
  if (!(error instanceof CommanderError)) {
    const { renderError } = await import("./view/error.ts"); // which help has no use for
    const verbose = program.opts<{ verbose?: boolean }>().verbose === true;
    process.stderr.write(`${renderError(error, { verbose, colour: process.stderr.isTTY })}\n`);
  }
}

function exitCodeOf(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  if (!(error instanceof TreadleError)) return 1;
  if (error.code === "node.name-taken") return nameTakenCode;
  if (error.disposition === "misuse") return 2;
  return error.disposition === "cancelled" ? 130 : 1;
}
