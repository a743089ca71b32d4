import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Profile } from "@treadle/contracts";
import { afterAll, expect, test } from "vitest";
import { knownProfile, type ProfilePorts } from "../src/commands/known-profile.ts";

const projectRoot = mkdtempSync(join(tmpdir(), "treadle-no-profile-"));
afterAll(() => rmSync(projectRoot, { recursive: true, force: true }));

const measured = { workflow: "grpo" } as Profile;
const flags = { config: "big one.yaml", set: ["batch=4", "task={a: 1}"] };
const asked = { workflow: "workflows/grpo", projectRoot, flags };

function terminal(answer: boolean): ProfilePorts & { readonly questions: string[] } {
  const questions: string[] = [];
  return {
    isTerminal: true,
    check: async () => {},
    questions,
    confirm: async (question) => {
      questions.push(question);
      return answer;
    },
    measure: async () => measured,
  };
}

const remedy = `run 'treadle profile workflows/grpo --config "big one.yaml" --set batch=4 --set "task={a: 1}"'`;

test("without a profile, a plan asks at a terminal whether to measure, and goes on with what was found", async () => {
  const ports = terminal(true);
  expect(await knownProfile(asked, ports)).toBe(measured);
  expect(ports.questions).toEqual([expect.stringContaining("There is no profile of 'grpo'. Measure it now?")]);
});

test("whoever says no gets the command, with the plan's own settings", async () => {
  await expect(knownProfile(asked, terminal(false))).rejects.toThrow(remedy);
});

test("nobody is asked without a terminal, for --json, or for a file by name", async () => {
  const ports = terminal(true);
  await expect(knownProfile(asked, { ...ports, isTerminal: false })).rejects.toThrow(remedy);
  await expect(knownProfile({ ...asked, flags: { ...flags, json: true } }, ports)).rejects.toThrow(remedy);
  const named = { ...asked, flags: { ...flags, profile: join(projectRoot, "mine.json") } };
  await expect(knownProfile(named, ports)).rejects.toThrow("mine.json");
  expect(ports.questions).toEqual([]);
});

test("a mistake in the configuration is told before a profile is asked for", async () => {
  const ports = terminal(true);
  const check = async () => {
    throw new Error("apart and together");
  };
  await expect(knownProfile(asked, { ...ports, check })).rejects.toThrow("apart and together");
  expect(ports.questions).toEqual([]);
});
