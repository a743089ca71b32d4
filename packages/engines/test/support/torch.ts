/** Where PyTorch is: `npm run test:torch` makes an environment with it; elsewhere what needs it is skipped, and says why. */
import { spawnSync } from "node:child_process";

const python = process.env["TREADLE_PYTHON"] ?? "python3";
const script =
  "import importlib.util as u; print(*[m for m in ('torch', 'transformers', 'grpc') if not u.find_spec(m)])";

/** Undefined where engines of kind `torch` can run. */
export function lacksTorch(): string | undefined {
  const found = spawnSync(python, ["-c", script], { encoding: "utf8" });
  const missing = found.status === 0 ? found.stdout.trim() : "an interpreter";
  if (missing === "") return undefined;
  const reason = `'${python}' lacks ${missing}: run 'npm run test:torch', or set TREADLE_PYTHON`;
  if (process.env["TREADLE_REQUIRE_TORCH"]) throw new Error(reason);
  return reason;
}
