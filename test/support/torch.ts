/** Where PyTorch is (`torch-environment.ts`); elsewhere what needs it is skipped, and says why. */
import { spawnSync } from "node:child_process";

/** The interpreter that engines of kind `torch` take, too. */
export const python: string = process.env["TREADLE_PYTHON"] ?? "python3";

const script =
  "import importlib.util as u; print(*[m for m in ('torch', 'transformers', 'grpc') if not u.find_spec(m)])";

/** Undefined where engines of kind `torch` can run. Throws instead where `CI` is set. */
export function lacksTorch(): string | undefined {
  const found = spawnSync(python, ["-c", script], { encoding: "utf8" });
  const missing = found.status === 0 ? found.stdout.trim() : "an interpreter";
  if (missing === "") return undefined;
  const reason = `'${python}' lacks ${missing}: run 'npm run test:torch', or set TREADLE_PYTHON`;
  if (process.env["CI"]) throw new Error(reason);
  return reason;
}
