import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { environmentAt, environmentOf, makeEnvironment } from "../../../../test/support/python-environment.ts";

const run = promisify(execFile);
/** the package `treadle` */
export const python = fileURLToPath(new URL("../../../../python/treadle", import.meta.url));
const tests = join(python, "tests");

type Lacks = { readonly lacks: string };

/** A Python with what the tests need, made once; or why there is none. */
export async function preparePython(): Promise<{ readonly interpreter: string } | Lacks> {
  const [usual, alone] = ["requirements.txt", "requirements-alone.txt"].map((list) => join(tests, list)) as [
    string,
    string,
  ];
  const name = environmentOf("python", [usual, alone]);
  try {
    if (!existsSync(environmentAt(name)))
      await makeEnvironment(name, async (pip) => {
        await pip("-r", usual);
        await pip("--no-deps", "-r", alone);
      });
  } catch (error) {
    return lackOf(error);
  }
  return { interpreter: join(environmentAt(name), "bin/python") };
}

/** A folder of pytest and what runs it in parallel, for the Python of a sandbox: without code of one version or machine. */
export async function preparePytest(): Promise<{ readonly packages: string } | Lacks> {
  const list = join(tests, "requirements-suite.txt");
  const name = environmentOf("pytest", [list]);
  try {
    if (!existsSync(environmentAt(name)))
      await makeEnvironment(name, (pip, folder) => pip("--target", join(folder, "packages"), "-r", list));
  } catch (error) {
    return lackOf(error);
  }
  return { packages: join(environmentAt(name), "packages") };
}

/** As a user's `pip install ./python/treadle` does it, into a folder. */
export async function installClient(interpreter: string, folder: string): Promise<void> {
  const offline = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"];
  await run(interpreter, ["-m", "pip", "install", "--quiet", ...offline, "--target", folder, python]);
}

/** What is lacking here, or the error where it is another. */
function lackOf(error: unknown): Lacks {
  const { code, stderr = "", stdout = "" } = error as { code?: unknown; stderr?: string; stdout?: string };
  if (code === "ENOENT" || stdout.includes("ensurepip")) return { lacks: "there is no python3 with venv" };
  if (/connection|resolution|timed? ?out|unreachable/i.test(stderr))
    return { lacks: "the package index of Python cannot be reached" };
  throw error;
}
