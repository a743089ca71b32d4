import { TreadleError } from "@treadle/contracts";
import type { ExecRequest, ExecResult, Sandbox } from "./sandbox.ts";

type Runs = Pick<Sandbox, "exec">;

/** Through the sandbox, not from outside: a link that a command left must not lead out of it. */
export async function writeThrough(sandbox: Runs, path: string, data: string | Uint8Array): Promise<void> {
  const script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"';
  const request: ExecRequest = { command: ["sh", "-c", script, "sh", path], stdin: data };
  await mustSucceed(sandbox, request, `'${path}' could not be written`);
}

export async function readThrough(sandbox: Runs, path: string, maxBytes = 64 * 2 ** 20): Promise<Buffer> {
  const request: ExecRequest = { command: ["cat", "--", path], maxOutputBytes: maxBytes };
  return (await mustSucceed(sandbox, request, `'${path}' could not be read`)).stdout;
}

async function mustSucceed(sandbox: Runs, request: ExecRequest, what: string): Promise<ExecResult> {
  const result = await sandbox.exec({ graceMs: 0, ...request });
  if (result.exitCode === 0) return result;
  const why = result.status === "exited" ? result.stderr.toString().trim() : result.status;
  throw new TreadleError("sandbox.failed", `${what}: ${why}`);
}
