/**
 * Named shells of a trajectory, whose state stays from command to command: variables, functions, aliases, options, umask and
 * the folder. Nothing runs and no core is held between two commands, since each is a `bash` of its own that takes up what the
 * one before left.
 *
 * Owned here: which sessions a trajectory has, and whether one is in use. What a session keeps is a file of its sandbox.
 *
 * BS1 a session runs one command at a time; another is refused, not queued.
 * BS2 the end of a command is its driver's to tell: what the kernel told the parent of its `bash`. What a session keeps is read
 *    by the next command alone, so that whoever changes it changes no end.
 * BS3 a command that a limit, a cancel or SIGTERM ended leaves the session as it was before it; SIGINT ends the command alone,
 *    as at a terminal. Where what a session keeps is gone, no command runs in it until it is opened again.
 */
import { TreadleError } from "@treadle/contracts";

export type ShellSession = {
  /** of the file in the sandbox; no other session ever has it */
  readonly id: string;
  /** a command was begun, so that the file has to be there */
  hasRun: boolean;
  isBusy: boolean;
};

const namePattern = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;
const mostSessions = 64;

export class ShellSessions {
  readonly #sessions: Map<string, ShellSession>;
  readonly #newId: () => string;

  /** `from`: those that a snapshot brought */
  constructor(newId: () => string, from: ReadonlyMap<string, ShellSession> = new Map()) {
    this.#newId = newId;
    this.#sessions = new Map([...from].map(([name, session]) => [name, { ...session, isBusy: false }]));
  }

  /** Throws `action.invalid`. */
  open(name: string): void {
    if (!namePattern.test(name))
      throw invalid(
        `session '${name.slice(0, 100)}' is no name; give one of up to 64 letters, digits, '_', '.' and '-', that begins with a letter or digit`,
      );
    if (this.#sessions.has(name))
      throw invalid(`session '${name}' is open already; use it, close it, or choose another name`);
    if (this.#sessions.size >= mostSessions)
      throw invalid(`${mostSessions} sessions are open, which is the most that a trajectory may have; close some`);
    this.#sessions.set(name, { id: this.#newId(), hasRun: false, isBusy: false });
  }

  /** Throws `action.invalid` while it runs a command (BS1). */
  close(name: string): void {
    this.free(name);
    this.#sessions.delete(name);
  }

  /** One that runs nothing; throws `action.invalid` where there is none (BS1). */
  free(name: string): ShellSession {
    const session = this.#sessions.get(name);
    const open = [...this.#sessions.keys()].map((one) => `'${one}'`).join(", ") || "none";
    if (session === undefined)
      throw invalid(`session '${name.slice(0, 100)}' is not open; open it first; open are ${open}`);
    if (session.isBusy)
      throw invalid(`session '${name}' runs a command; wait for its end, cancel it, or open another session`);
    return session;
  }

  /** As they are now, for a copy of the sandbox. */
  copy(): ReadonlyMap<string, ShellSession> {
    return new Map([...this.#sessions].map(([name, session]) => [name, { ...session }]));
  }
}

/** BS1: of a session by one command, which may still run when its caller has been told that it is over, as after a cancel. */
export class SessionUse {
  readonly session: ShellSession;
  #runs = false;
  #isOver = false;

  constructor(session: ShellSession) {
    this.session = session;
  }

  /** until its caller is told of its end */
  until(result: Promise<unknown>): void {
    this.session.isBusy = true;
    const over = (): void => {
      this.#isOver = true;
      this.session.isBusy = this.#runs;
    };
    result.then(over, over);
  }

  /** and while it runs */
  async during<Result>(run: Promise<Result>): Promise<Result> {
    this.#runs = true;
    try {
      return await run;
    } finally {
      this.#runs = false;
      if (this.#isOver) this.session.isBusy = false;
    }
  }
}

/** What runs `text` in a session, in a sandbox that keeps state in `folder`. */
export function sessionCommand(
  { id, hasRun }: ShellSession,
  text: string,
  folder: string,
): [program: string, ...args: string[]] {
  const args = [`${folder}/session-${id}`, hasRun ? "kept" : "new", text];
  return ["sh", "-c", findBash, "sh", inSession, "bash", ...args];
}

const findBash =
  'command -v bash >/dev/null || { echo "treadle: a session needs bash, which this sandbox does not have; install it in the image" >&2; exit 127; }; exec bash -c "$@"';

/**
 * $1 is the file of what is kept, $2 whether there is one, $3 the command. Left out is what belongs to one process or to one
 * action: its units, its numbers, its clocks. RANDOM is one of them: to restore it would make all commands draw the same.
 * Folders below the one in which commands begin are kept relative to it, which in a copy of the sandbox may be another.
 */
const inSession = `
__treadle_file=$1 __treadle_text=$3 __treadle_start=$PWD
__treadle_dir=\${__treadle_file%/*}
__treadle_keep() {
  local __treadle_names __treadle_name __treadle_folder=$PWD __treadle_previous=\${OLDPWD-}
  case $PWD/ in "$__treadle_start"/*) __treadle_folder=.\${PWD#"$__treadle_start"} ;; esac
  case $__treadle_previous/ in "$__treadle_start"/*) __treadle_previous=.\${OLDPWD#"$__treadle_start"} ;; esac
  case $__treadle_flags in *e*) __treadle_options+=$'\\nset -e' ;; esac
  [ -d "$__treadle_dir" ] || command -p mkdir -p -m 700 -- "$__treadle_dir"
  mapfile -t __treadle_names < <(compgen -v)
  {
    for __treadle_name in "\${__treadle_names[@]}"; do
      case $__treadle_name in
        __treadle_*|TREADLE_UNITS_*|BASH*|COMP_*|EPOCH*|FUNCNAME|DIRSTACK|EUID|GROUPS|HISTCMD|LINENO|OLDPWD) ;;
        PIPESTATUS|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_) ;;
        *) builtin declare -p "$__treadle_name" ;;
      esac
    done
    builtin declare -f
    builtin declare -Fx
    builtin alias -p
    builtin umask -p
    printf '__treadle_folder=%q __treadle_previous=%q __treadle_options=%q\\n' \\
      "$__treadle_folder" "$__treadle_previous" "$__treadle_options"
  } >| "$__treadle_file.new" && command -p mv -f -- "$__treadle_file.new" "$__treadle_file" ||
    echo "treadle: what this session keeps could not be written to '$__treadle_file'; it stays as it was" >&2
}
if [ -f "$__treadle_file" ]; then
  for __treadle_name in $(compgen -e); do
    case $__treadle_name in TREADLE_UNITS_*) ;; *) unset -v "$__treadle_name" ;; esac
  done
  source "$__treadle_file" >/dev/null 2>&1
  builtin cd -- "$__treadle_folder" 2>/dev/null || {
    echo "treadle: the session's folder '$__treadle_folder' is gone; this command begins in '$__treadle_start'" >&2
    builtin cd -- "$__treadle_start"
  }
  case $__treadle_previous in .*) OLDPWD=$__treadle_start\${__treadle_previous#.} ;; *) OLDPWD=$__treadle_previous ;; esac
elif [ "$2" = kept ]; then
  echo "treadle: what this session kept is gone; nothing was run; close the session and open it again" >&2
  exit 125
else
  __treadle_flags=$- __treadle_options=$(shopt -p; set +o)
  __treadle_keep
fi
set --
trap '{ __treadle_code=$? __treadle_flags=$- __treadle_options=$(shopt -p; set +o); set +eux; trap - EXIT INT TERM; } 2>/dev/null
__treadle_keep; exit "$__treadle_code"' EXIT
trap 'exit 130' INT
trap 'trap - EXIT; exit 143' TERM
{ eval "$__treadle_options"; } 2>/dev/null
eval "$__treadle_text"
`;

const invalid = (message: string): TreadleError => new TreadleError("action.invalid", message);
