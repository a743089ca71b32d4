import { expect, test } from "vitest";
import { TreadleError } from "../src/index.ts";
import {
  checkModelFolder,
  checkProgram,
  checkVariables,
  checkWrittenFolder,
  ProgramRights,
  programRightsVariable,
  pythonInterpreter,
} from "../src/program-rights.ts";

const rights = (over: Partial<ProgramRights> = {}): ProgramRights =>
  ProgramRights.parse({ node: "a", project: "/srv/p", interpreters: [], programs: [], variables: [], ...over });
const limited = (over: Partial<ProgramRights> = {}, more: Record<string, string> = {}) => ({
  ...more,
  [programRightsVariable]: JSON.stringify(rights(over)),
});

function outcome(act: () => unknown): unknown {
  try {
    return act();
  } catch (error) {
    return error instanceof TreadleError ? error.code : error;
  }
}

test("PGR1: where no agent limits it, a configuration names what it likes", () => {
  expect(pythonInterpreter("/tmp/evil.sh", "engine.python", {})).toBe("/tmp/evil.sh");
  expect(outcome(() => checkProgram("/bin/sh", "judge.command", {}))).toBeUndefined();
  expect(outcome(() => checkVariables(["NODE_OPTIONS"], "judge.environment", {}))).toBeUndefined();
  expect(outcome(() => checkModelFolder("/etc", "engine.path", {}))).toBeUndefined();
  expect(outcome(() => checkWrittenFolder("/etc", "engine.weightsFolder", {}))).toBeUndefined();
});

test("PGR1: under an agent a script runs by the agent's Python, one of the project's, or one that the agent names", () => {
  const of = (named: string | undefined, env = limited()) =>
    outcome(() => pythonInterpreter(named, "engine.python", env));
  expect(of(undefined)).toBe("python3");
  expect(of(undefined, limited({}, { TREADLE_PYTHON: "/opt/py" }))).toBe("/opt/py");
  expect(of("/opt/py", limited({}, { TREADLE_PYTHON: "/opt/py" }))).toBe("/opt/py");
  expect(of("/opt/py", limited({ interpreters: ["/opt/py"] }))).toBe("/opt/py");
  for (const own of ["python3", ".venv/bin/python", "/srv/p/torch/bin/python3.13"]) expect(of(own)).toBe(own);
  const others = [
    ...["/opt/py", "/bin/sh", "sh", "/usr/bin/python3", "../p2/bin/python", "/srv/p2/bin/python3", ".venv/bin/sh"],
    ...["runs/x/bin/python", "/srv/p/runs/python3", ".venv/../../bin/python", ""],
    "data/../python3", // for the kernel beside whatever the link 'data' leads to
  ];
  for (const other of others) expect([other, of(other)]).toEqual([other, "node.forbidden"]);
});

test("PGR1: under an agent programs and variables are exactly those that it names", () => {
  const env = limited({ programs: ["/opt/serve"], variables: ["OMP_NUM_THREADS"] });
  expect(outcome(() => checkProgram("/opt/serve", "judge.command", env))).toBeUndefined();
  for (const other of ["/opt/serve2", "/opt/../opt/serve", "serve", "/bin/sh"])
    expect(outcome(() => checkProgram(other, "judge.command", env))).toBe("node.forbidden");
  expect(outcome(() => checkVariables(["OMP_NUM_THREADS"], "judge.environment", env))).toBeUndefined();
  expect(outcome(() => checkVariables(["OMP_NUM_THREADS", "LD_PRELOAD"], "judge.environment", env))).toBe(
    "node.forbidden",
  );
});

test("PGR1: under an agent models lie below the project or where it says, and weights are written below the project", () => {
  const env = limited({ models: ["/models", "/mnt/a b/"] });
  const reads = (folder: string) => outcome(() => checkModelFolder(folder, "engine.path", env));
  const writes = (folder: string) => outcome(() => checkWrittenFolder(folder, "engine.weightsFolder", env));
  for (const own of ["models/tiny", "/srv/p/models/tiny"])
    expect([own, reads(own), writes(own)]).toEqual([own, undefined, undefined]);
  for (const named of ["/models", "/models/qwen", "/mnt/a b/x/y"]) {
    expect([named, reads(named)]).toEqual([named, undefined]);
    expect([named, writes(named)]).toEqual([named, "node.forbidden"]);
  }
  const others = [
    "/",
    "/etc",
    "/models2",
    "/models/../etc",
    "/mnt/a",
    "../p2",
    "/srv/p",
    "/srv/p/runs/x",
    "/srv/p/../q",
    "",
  ];
  for (const other of others) {
    expect([other, reads(other)]).toEqual([other, "node.forbidden"]);
    expect([other, writes(other)]).toEqual([other, "node.forbidden"]);
  }
});
