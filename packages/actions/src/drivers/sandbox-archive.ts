/**
 * Archives of a sandbox's files, made and unpacked inside of it, as the user that commands run as: nothing outside follows a
 * link or trusts a name that a command made.
 */
import { randomUUID } from "node:crypto";
import type { Readable } from "node:stream";
import { TreadleError } from "@treadle/contracts";
import { longestTimerMs } from "../formulation/action-spec.ts";
import type { ExecRequest, ExecResult, Sandbox } from "./sandbox.ts";

type Runs = Pick<Sandbox, "exec">;

/** As an `ArchiveFilter` lets it through. */
export type CheckedArchive = { readonly isFolder: boolean; readonly content: Readable };

export type PackOptions = { readonly take: (chunk: Buffer) => void; readonly signal: AbortSignal };

/** Makes what is in the shell's folder its arguments. */
export const listContent =
  'set --; for f in * .[!.]* ..?*; do [ -e "$f" ] || [ -L "$f" ] || continue; set -- "$@" "./$f"; done';

export const ofCopies = { graceMs: 0, timeoutMs: longestTimerMs, maxOutputBytes: 2 ** 20 } as const;

/** The command's standard output, as it comes. What `take` throws ends the command, and is thrown. */
export async function printedBy(
  sandbox: Runs,
  command: ExecRequest["command"],
  options: { readonly maxBytes: number; readonly signal: AbortSignal; readonly take: (chunk: Buffer) => void },
): Promise<ExecResult> {
  const { maxBytes, signal, take } = options;
  let complaint = "";
  const refusal = new AbortController();
  const result = await sandbox.exec({
    command,
    ...ofCopies,
    maxOutputBytes: maxBytes,
    keepsOutput: false,
    signal: AbortSignal.any([signal, refusal.signal]),
    onOutput: (stream, chunk) => {
      if (stream === "stderr") complaint = `${complaint}${chunk}`.slice(-2000);
      else if (!refusal.signal.aborted) {
        try {
          take(chunk);
        } catch (error) {
          refusal.abort(error);
        }
      }
    },
  });
  signal.throwIfAborted();
  refusal.signal.throwIfAborted();
  return { ...result, stderr: Buffer.from(complaint) };
}

const packOne = `if [ -d "$1" ]; then cd -- "$1" && exec tar -c -f - .; fi
cd -- "$(dirname -- "$1")" && exec tar -c -f - "./$(basename -- "$1")"`;

/** An archive of the folder or file, which nobody has checked. Throws `sandbox.failed`, and what `take` throws. */
export async function packPath(sandbox: Runs, path: string, { take, signal }: PackOptions): Promise<void> {
  const whole = { maxBytes: Number.MAX_SAFE_INTEGER, signal, take };
  const result = await printedBy(sandbox, ["sh", "-c", packOne, "sh", path], whole);
  if (result.exitCode !== 0) throw failed(`'${path}' could not be packed`, result);
}

/**
 * Beside its place first. A folder that is there already gets what the archive has, which replaces what has its names; links of
 * these names are replaced, not followed.
 */
const unpackAt = `set -e
target=$1; place=$(dirname -- "$1"); [ ! -d "$1" ] || place=$1
mkdir -p -- "$place"
stage=$place/$2
trap 'rm -rf -- "$stage"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -- "$stage" "$stage/in"
tar -x -p -o -f - -C "$stage/in"
if [ "$3" = file ]; then
  if [ -d "$target" ]; then echo "it is a folder; name the file in it" >&2; exit 1; fi
  mv -f -- "$stage/in/file" "$target"
elif [ ! -d "$target" ]; then
  if [ -e "$target" ] || [ -L "$target" ]; then echo "it is no folder; remove it first" >&2; exit 1; fi
  mv -- "$stage/in" "$target"
elif [ -n "$(ls -A -- "$stage/in")" ]; then
  { (cd -- "$stage/in" || exit 1; ${listContent}; exec tar -c -f - "$@") || : > "$stage/failed"; } |
    tar -x -p -o -f - -C "$target"
  [ ! -e "$stage/failed" ]
fi`;

/** Nothing is written where it fails, but into a folder that was there before. Throws `sandbox.failed`. */
export async function unpackPath(
  sandbox: Runs,
  path: string,
  { isFolder, content }: CheckedArchive,
  signal: AbortSignal,
): Promise<void> {
  const words = [path, `.treadle-upload-${randomUUID()}`, isFolder ? "folder" : "file"];
  const command: ExecRequest["command"] = ["sh", "-c", unpackAt, "sh", ...words];
  // Time to remove what it began, where it is cancelled.
  const result = await sandbox.exec({ command, stdin: content, ...ofCopies, graceMs: 5000, signal });
  signal.throwIfAborted();
  if (result.exitCode !== 0) throw failed(`'${path}' could not be unpacked`, result);
}

export function failed(what: string, { status, stderr }: ExecResult): TreadleError {
  const why = status === "exited" ? stderr.toString().trim().slice(-500) : status;
  return new TreadleError("sandbox.failed", `${what}: ${why}`);
}
