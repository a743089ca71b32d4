import { type ChildProcess, spawn } from "node:child_process";

/**
 * Ends what this process leaves behind if it dies without a chance to clean up.
 *
 * A small shell in a session of its own reads names of process groups from a pipe. When the pipe ends, because we closed
 * it or died of anything, it kills the groups still on its list, then every process in the control groups under
 * `cgroups`, and removes those and `folders`. After an orderly `close` it finds nothing to do.
 */
export class Reaper {
  readonly #shell: ChildProcess;

  constructor(cgroups: readonly string[] = [], folders: readonly string[] = []) {
    const lists = [cgroups.join("\n"), folders.join("\n"), process.env["TREADLE_WORKER_GROUP"] ?? ""];
    this.#shell = spawn("/bin/sh", ["-c", script, "treadle-reaper", ...lists], {
      detached: true,
      stdio: ["pipe", "ignore", "ignore"],
      env: { PATH: "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" },
      cwd: "/",
    });
    this.#shell.stdin!.on("error", () => {});
    // It ends when we do; it must not keep us alive.
    this.#shell.unref();
    (this.#shell.stdin as unknown as { unref?: () => void }).unref?.();
  }

  /** Adds a process group. */
  watch(group: number): void {
    this.#shell.stdin!.write(`+${group}\n`);
  }

  /** A group that has ended is forgotten: its number may be somebody else's soon. */
  forget(group: number): void {
    this.#shell.stdin!.write(`-${group}\n`);
  }

  close(): Promise<void> {
    return new Promise((resolve) => {
      if (this.#shell.exitCode !== null || this.#shell.pid === undefined) return resolve();
      this.#shell.ref();
      this.#shell.once("exit", () => resolve());
      this.#shell.stdin!.end();
    });
  }
}

/**
 * A worker's control group ends with the worker, before this could do anything: it leaves that group first, for the one above, or,
 * where that hands its controllers on (CG8), for the one beside.
 */
const script = `
trap '' HUP INT TERM
if [ -n "$3" ]; then
  for above in "$3/.." "$3/../treadle-service"; do echo $$ 2>/dev/null > "$above/cgroup.procs" && break; done
fi
groups=" "
while read -r line; do
  n="\${line#?}"
  case "$line" in
    +*) groups="$groups$n " ;;
    -*) groups="\${groups%% $n *} \${groups#* $n }" ;;
  esac
done
for g in $groups; do kill -s KILL -- "-$g" 2>/dev/null; done
# Paths are a line each, whatever they hold.
IFS='
'
set -f
tries=0
while [ $tries -lt 200 ]; do
  left=""
  for root in $1; do
    [ -d "$root" ] || continue
    find "$root" -name pids.max 2>/dev/null | while read -r f; do echo 0 2>/dev/null > "$f"; done
    for p in $(find "$root" -name cgroup.procs -exec cat {} + 2>/dev/null); do kill -9 "$p" 2>/dev/null; done
    find "$root" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -d "$root" ] && left="$root"
  done
  [ -z "$left" ] && break
  tries=$((tries+1))
  sleep 0.05
done
for f in $2; do rm -rf -- "$f"; done
`;
