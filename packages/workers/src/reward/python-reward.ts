/**
 * A reward that is a Python function, in a process of its own beside the worker that scores.
 *
 * Owner of: that process, and the calls it has not answered. It ends with the worker: its input closes. The function has the
 * rights of the worker, so it is code that the user trusts; what a policy wrote and is to be run belongs in a tool.
 *
 * PR1 every call is answered: by the function, by its deadline, or by the end of the process, whose last words it names.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { realpath } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { join, relative, resolve, sep } from "node:path";
import { createInterface } from "node:readline";
import { TreadleError } from "@treadle/contracts";
import { packageFolder } from "@treadle/contracts/package-folder";
import { forbiddenProgram, isOfProject, programRights, pythonInterpreter } from "@treadle/contracts/program-rights";
import { parseConfig, type Reward, type RewardLog, type RewardPlugin } from "@treadle/learning";
import { z } from "zod";

const PythonRewardConfig = z.strictObject({
  name: z.literal("python"),
  /** `file.py:function`, from the project's root; called as `function(prompt=…, completion=…, answer=…, metadata=…)` */
  function: z.string().regex(/^.+\.py:[A-Za-z_]\w*$/, "a file and a function, as rewards.py:score"),
  /** of one call */
  timeoutMs: z.number().positive().default(10_000),
  /** of importing the file */
  startTimeoutMs: z.number().positive().default(60_000),
  /** reward of a completion for which the function raises or is late; default: the run ends */
  failureReward: z.number().optional(),
  /** interpreter; default: the environment's TREADLE_PYTHON, else python3 */
  python: z.string().min(1).optional(),
});
type PythonRewardConfig = z.infer<typeof PythonRewardConfig>;

const Reply = z.union([
  z.object({ ready: z.literal(true) }),
  z.object({ id: z.int(), score: z.number() }),
  z.object({ id: z.int(), late: z.literal(true) }),
  z.object({ id: z.int().optional(), error: z.string() }),
]);
type Reply = z.infer<typeof Reply>;

type Waiting = { readonly resolve: (reply: Reply) => void; readonly reject: (error: Error) => void };

const server = join(packageFolder(import.meta.url), "src/reward/serve_function.py");

export const pythonReward: RewardPlugin = {
  name: "python",
  create: (config, path) => new PythonReward(parseConfig(PythonRewardConfig, config, path)),
};

/** Of what the process wrote, its end is named with so many characters. */
const tailLength = 2000;

class PythonReward implements Reward {
  readonly name = "python";
  readonly #config: PythonRewardConfig;
  #process: ChildProcess | undefined;
  #ended: Promise<void> = Promise.resolve();
  readonly #waiting = new Map<number, Waiting>();
  #nextId = 0;
  #tail = "";
  #log: RewardLog = { warn: () => {} };
  #hasWarned = false;

  constructor(config: PythonRewardConfig) {
    this.#config = config;
  }

  async open(log: RewardLog): Promise<void> {
    this.#log = log;
    const { timeoutMs, startTimeoutMs } = this.#config;
    const python = pythonInterpreter(this.#config.python, "reward.python"); // PGR1
    await checkFunction(this.#config.function);
    const words = [server, this.#config.function, `${timeoutMs / 1000}`, `${availableParallelism()}`];
    const child = spawn(python, words, { stdio: ["pipe", "pipe", "pipe"] });
    this.#process = child;
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      this.#tail = (this.#tail + text).slice(-tailLength);
      process.stderr.write(text);
    });
    child.stdin.on("error", () => {}); // its end says more
    const ready = new Promise<Reply>((resolve, reject) => this.#waiting.set(-1, { resolve, reject }));
    createInterface(child.stdout).on("line", (line) => this.#answered(Reply.parse(JSON.parse(line))));
    this.#ended = new Promise((resolve) => {
      const end = (why: string) => {
        this.#process = undefined;
        const said = this.#tail.trim();
        const failure = this.#failed(said === "" ? why : `${why}; it printed '${said}'`);
        for (const { reject } of this.#waiting.values()) reject(failure);
        this.#waiting.clear();
        resolve();
      };
      child.on("error", (error) => end(`'${python}' did not start: ${error.message}; name an interpreter by 'python'`));
      child.on("close", (code, signal) => end(`its process ended (${signal ?? `exit code ${code}`})`));
    });
    const timer = setTimeout(() => {
      this.#waiting.get(-1)?.reject(this.#failed(`its file was not imported within '${startTimeoutMs}' ms`));
      child.kill("SIGKILL");
    }, startTimeoutMs);
    try {
      const reply = await ready;
      if ("error" in reply) throw this.#failed(`its file cannot be imported: ${lastOf(reply.error)}`);
    } finally {
      clearTimeout(timer);
    }
  }

  async close(): Promise<void> {
    this.#process?.stdin?.end();
    await this.#ended;
  }

  async score(...[prompt, { text }]: Parameters<Reward["score"]>): Promise<number> {
    const { timeoutMs, failureReward } = this.#config;
    const { answer = null, metadata = {} } = prompt;
    const reply = await this.#ask({
      prompt: prompt.messages ?? prompt.text ?? null,
      completion: text,
      answer,
      metadata,
    });
    if ("score" in reply) return reply.score;
    const why = "error" in reply ? `raised: ${lastOf(reply.error)}` : `did not answer within '${timeoutMs}' ms`;
    if (failureReward === undefined) throw this.#failed(`${why}; mend it, or set failureReward`);
    if (!this.#hasWarned) this.#log.warn(`'${this.#config.function}' ${why}; such completions get '${failureReward}'`);
    this.#hasWarned = true;
    return failureReward;
  }

  #ask(arguments_: object): Promise<Reply> {
    const child = this.#process;
    if (!child?.stdin) return Promise.reject(this.#failed("its process is not running"));
    const id = this.#nextId++;
    const { stdin } = child;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      stdin.write(`${JSON.stringify({ id, arguments: arguments_ })}\n`);
    });
  }

  #answered(reply: Reply): void {
    const id = ("id" in reply ? reply.id : undefined) ?? -1;
    this.#waiting.get(id)?.resolve(reply);
    this.#waiting.delete(id);
  }

  #failed(why: string): TreadleError {
    return new TreadleError("learning.reward-failed", `reward function '${this.#config.function}': ${why}`);
  }
}

/** PGR1: a file of the project, symbolic links resolved, where code is compared between nodes: neither hidden nor installed. */
async function checkFunction(name: string): Promise<void> {
  const rights = programRights();
  if (rights === undefined) return;
  const project = await realpath(rights.project);
  const file = resolve(project, name.slice(0, name.lastIndexOf(":")));
  // What is not there is told by the process that cannot import it.
  const real = await realpath(file).catch(() => file);
  const isInstalled = (part: string) => part.startsWith(".") || part === "site-packages" || part === "node_modules";
  if (isOfProject(real, { project }) && !relative(project, real).split(sep).some(isInstalled)) return;
  throw forbiddenProgram(
    rights,
    `names the function '${name}' in 'reward.function'; keep its file below '${project}', outside of 'runs', hidden folders and installed packages`,
  );
}

/** What was raised, and in which line: a traceback's last place and last line. */
function lastOf(traceback: string): string {
  const lines = traceback.trim().split("\n");
  const place = lines.findLast((line) => line.trimStart().startsWith("File "))?.trim();
  return [lines.at(-1), place].filter((part) => part !== undefined).join(", at ");
}
