import { expect, test } from "vitest";
import { AgentName, AgentNameOfHost, runPrefix } from "../src/index.ts";

test("a machine's name is a node's, as clouds and Kubernetes give it; what is no name of a machine is refused", () => {
  expect(AgentNameOfHost.parse("ip-10-0-0-1.ec2.internal")).toBe("ip-10-0-0-1-ec2-internal");
  const long = `${"a".repeat(40)}.${"b".repeat(40)}.example`;
  expect(AgentName.safeParse(AgentNameOfHost.parse(long)).success).toBe(true);
  for (const name of ["", "a b", "a/b", "a>", "runner"]) expect(AgentNameOfHost.safeParse(name).success).toBe(false);
});

test("no run's shared memory is named as that of a run whose name begins with its own", () => {
  for (const other of ["exp-2", "exp_2", "exp-2-", "expe"]) {
    expect(`${runPrefix(other)}1-`.startsWith(runPrefix("exp"))).toBe(false);
  }
});
