/** The plan of a run, as its folder has it. */
import { readFile } from "node:fs/promises";
import { Plan, TreadleError } from "@treadle/contracts";

/** Throws `problem.invalid`, naming the file and what is wrong with it. */
export async function readPlanFile(path: string): Promise<Plan> {
  const invalid = (why: string) =>
    new TreadleError("problem.invalid", `'${path}' is no plan: ${why}; each run's folder has one, plan.json`);
  const text = await readFile(path, "utf8").catch((error: Error) => {
    throw invalid(`it cannot be read (${error.message})`);
  });
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw invalid(`it is no JSON (${(error as Error).message})`);
  }
  const parsed = Plan.safeParse(json);
  if (!parsed.success) {
    const problems = parsed.error.issues.map((issue) => `${issue.path.join(".") || "plan"}: ${issue.message}`);
    throw invalid(problems.join("; "));
  }
  return parsed.data;
}
