/**
 * What a runner may say of how a worker process is started on a machine, which the machine's own configuration decides. Pure.
 *
 * NA4 a program, a flag or a variable that would make a process run other code than the module it was started for is refused
 *    unless the agent's configuration names it; those that exist for nothing else are refused even then.
 */
import { type Interpreter, TreadleError, type WorkerPermissions } from "@treadle/contracts";
import type { ProgramRights } from "@treadle/contracts/program-rights";
import { deviceVariables } from "./machine-devices.ts";

/** They say how many devices and threads a process has, and load nothing. */
const harmless = new Set([
  ...deviceVariables,
  "CUDA_DEVICE_ORDER",
  "OMP_NUM_THREADS",
  "MKL_NUM_THREADS",
  "OPENBLAS_NUM_THREADS",
  "UV_THREADPOOL_SIZE",
]);

/** By these a process finds or loads code before its own. An agent may have them in its environment; nobody sends them. */
const never = /^(NODE_|LD_|DYLD_|PYTHON|PATH$|PERL|RUBY|BASH_|ENV$|SHELL|IFS$|GCONV_PATH$|GLIBC_|OPENSSL_|TREADLE_)/i;

export type WorkerStart = {
  readonly env: Readonly<Record<string, string>>;
  readonly interpreter?: Interpreter | undefined;
};

/** Throws `node.forbidden`. `node`: its name, for the message. */
export function checkWorkerStart(start: WorkerStart, permissions: WorkerPermissions, node: string): void {
  const { env, interpreter } = start;
  for (const name of Object.keys(env)) {
    if (never.test(name)) {
      throw forbidden(`sets '${name}', by which a process finds other code; no runner may, on any node`, node);
    }
    if (harmless.has(name) || permissions.env.includes(name)) continue;
    throw forbidden(`sets '${name}'; start its agent with '--allow-env ${name}', or leave that variable out`, node);
  }
  if (interpreter === undefined) return;
  if (!permissions.interpreters.includes(interpreter.command)) {
    throw forbidden(
      `names the interpreter '${interpreter.command}'; start its agent with '--allow-interpreter ${interpreter.command}', or leave it to the agent's own Node`,
      node,
    );
  }
  for (const flag of interpreter.flags) {
    if (permissions.flags.includes(flag)) continue;
    throw forbidden(
      `gives the interpreter the flag '${flag}'; start its agent with '--allow-flag=${flag}', or leave it out`,
      node,
    );
  }
}

/** What workers may start of what their configuration names, by the same rules. */
export function rightsOf(permissions: WorkerPermissions, node: string, project: string): ProgramRights {
  const { interpreters, programs, models, env } = permissions;
  const variables = [...harmless, ...env.filter((name) => !never.test(name))]; // NA4
  return { node, project, interpreters, programs, models, variables };
}

function forbidden(what: string, node: string): TreadleError {
  return new TreadleError("node.forbidden", `node '${node}' does not start a worker for which the runner ${what}`, {
    origin: { node },
  });
}
