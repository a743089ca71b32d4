/**
 * Which programs a worker starts because its configuration says so. A configuration comes from the run's runner, so on a node
 * that is not the runner's it is the agent that decides. Pure.
 *
 * PGR1 where an agent has said what it allows, no shipped worker starts another program, sets or reads another variable or
 *    imports another file because of its configuration; where none has, on the runner's own machine, the configuration alone
 *    decides.
 */
import { basename, isAbsolute, relative, resolve, sep } from "node:path";
import { z } from "zod";
import { TreadleError } from "./errors.ts";
import { readMessage } from "./read-message.ts";

/** What an agent allows its workers, in their environment, where no runner can set it. */
export const ProgramRights = z.strictObject({
  node: z.string(),
  /** root of the project, whose environments' Pythons are allowed */
  project: z.string(),
  /** programs that run Treadle's own scripts */
  interpreters: z.array(z.string()),
  /** programs with whatever arguments the configuration gives them */
  programs: z.array(z.string()),
  /** folders below which models may lie, besides the project */
  models: z.array(z.string()).default([]),
  /** variables that the configuration may set for them, or have read */
  variables: z.array(z.string()),
});
export type ProgramRights = z.infer<typeof ProgramRights>;

export const programRightsVariable = "TREADLE_PROGRAM_RIGHTS";

type Environment = Readonly<Record<string, string | undefined>>;

/** Undefined where no agent limits this process. */
export function programRights(env: Environment = process.env): ProgramRights | undefined {
  const text = env[programRightsVariable];
  return text === undefined ? undefined : readMessage(ProgramRights, JSON.parse(text));
}

const python = /^python(3(\.\d+)?)?$/;

/**
 * The Python that runs a script of Treadle's: what the configuration names, else the environment's TREADLE_PYTHON, else
 * python3. `key`: of the configuration. Throws `node.forbidden` (PGR1).
 */
export function pythonInterpreter(named: string | undefined, key: string, env: Environment = process.env): string {
  const own = env["TREADLE_PYTHON"] ?? "python3";
  const rights = programRights(env);
  if (named === undefined || named === own) return own;
  if (rights === undefined || rights.interpreters.includes(named)) return named;
  // A Python by its bare name is found by the agent's own PATH.
  if (python.test(named) || (python.test(basename(named)) && isOfProject(named, rights))) return named;
  throw forbiddenProgram(
    rights,
    `names the interpreter '${named}' in '${key}'; start its agent with '--allow-interpreter ${named}', or leave it to the agent's TREADLE_PYTHON`,
  );
}

/** Throws `node.forbidden` for a program, with arguments of the configuration's, that the agent does not allow (PGR1). */
export function checkProgram(program: string, key: string, env: Environment = process.env): void {
  const rights = programRights(env);
  if (rights === undefined || rights.programs.includes(program)) return;
  throw forbiddenProgram(
    rights,
    `names the program '${program}' in '${key}'; start its agent with '--allow-program ${program}', or start that program yourself`,
  );
}

/** Throws `node.forbidden` (PGR1). */
export function checkVariables(names: readonly string[], key: string, env: Environment = process.env): void {
  const rights = programRights(env);
  const refused = names.find((name) => rights !== undefined && !rights.variables.includes(name));
  if (rights === undefined || refused === undefined) return;
  throw forbiddenProgram(
    rights,
    `names the variable '${refused}' in '${key}'; start its agent with '--allow-env ${refused}' where that can be allowed, or leave it out`,
  );
}

/** Throws `node.forbidden` for a folder to write to that is not the project's (PGR1). */
export function checkWrittenFolder(folder: string, key: string, env: Environment = process.env): void {
  const rights = programRights(env);
  if (rights === undefined || isOfProject(folder, rights)) return;
  throw forbiddenProgram(
    rights,
    `writes to '${folder}' ('${key}'); give a folder below '${rights.project}', outside of 'runs'`,
  );
}

/** Throws `node.forbidden` for the folder of a model that is neither the project's nor where the agent has its models (PGR1). */
export function checkModelFolder(folder: string, key: string, env: Environment = process.env): void {
  const rights = programRights(env);
  if (rights === undefined || isOfProject(folder, rights)) return;
  if (rights.models.some((root) => isBelow(folder, root))) return;
  throw forbiddenProgram(
    rights,
    `reads the model in '${folder}' ('${key}'); start its agent with '--allow-models ${folder}', or a folder above it, or give a folder below '${rights.project}'`,
  );
}

/** Itself among them; symbolic links as they are. */
function isBelow(path: string, root: string): boolean {
  if (!isAbsolute(path) || path.split(sep).includes("..")) return false;
  const [first] = relative(root, path).split(sep);
  return first !== "..";
}

/**
 * Whether a path, symbolic links as they are, is below the project's root and in nothing that runs keep. None with `..` is: it
 * leads elsewhere for the kernel, which follows links first.
 */
export function isOfProject(path: string, { project }: Pick<ProgramRights, "project">): boolean {
  if (path.split(sep).includes("..")) return false;
  const below = relative(project, isAbsolute(path) ? path : resolve(project, path));
  const [first] = below.split(sep);
  return below !== "" && first !== ".." && !isAbsolute(below) && first !== "runs";
}

export function forbiddenProgram({ node }: ProgramRights, what: string): TreadleError {
  return new TreadleError("node.forbidden", `node '${node}' does not start a worker whose configuration ${what}`, {
    origin: { node },
  });
}
