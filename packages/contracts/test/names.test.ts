import { expect, test } from "vitest";
import { AgentName, AgentNameOfHost } from "../src/index.ts";

test("a machine's name is a node's, as clouds and Kubernetes give it; what is no name of a machine is refused", () => {
  expect(AgentNameOfHost.parse("ip-10-0-0-1.ec2.internal")).toBe("ip-10-0-0-1-ec2-internal");
  const long = `${"a".repeat(40)}.${"b".repeat(40)}.example`;
  expect(AgentName.safeParse(AgentNameOfHost.parse(long)).success).toBe(true);
  for (const name of ["", "a b", "a/b", "a>", "runner"]) expect(AgentNameOfHost.safeParse(name).success).toBe(false);
});
