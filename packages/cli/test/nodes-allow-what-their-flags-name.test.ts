import { expect, test } from "vitest";
import { nodeCommand, permissionsOf } from "../src/commands/node.ts";

const permissionsWith = (flags: readonly string[]) => {
  const command = nodeCommand();
  command.parseOptions([...flags]);
  return permissionsOf(command.opts());
};
const nothing = { interpreters: [], flags: [], programs: [], models: [], env: [] };

test("an agent without flags allows nothing", () => {
  expect(permissionsWith([])).toEqual(nothing);
});

test.each([
  [["--allow-interpreter", "/opt/node/bin/node"], { interpreters: ["/opt/node/bin/node"] }],
  [["--allow-flag=--expose-gc"], { flags: ["--expose-gc"] }],
  [["--allow-program", "/opt/judge"], { programs: ["/opt/judge"] }],
  [["--allow-models", "/models"], { models: ["/models"] }],
  [["--allow-env", "HF_HOME"], { env: ["HF_HOME"] }],
  [["--allow-env", "HF_HOME", "--allow-env", "HF_TOKEN"], { env: ["HF_HOME", "HF_TOKEN"] }],
])("%j allows exactly that", (flags, allowed) => {
  expect(permissionsWith(flags)).toEqual({ ...nothing, ...allowed });
});
