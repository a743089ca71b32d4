/** The drawing of a machine's page of design has every state that the machine has in code. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { MarkdownFile } from "../support/markdown.ts";
import { projectRoot } from "../support/project.ts";

/** Where a type or list of states stands. */
type States = { readonly file: string; readonly name: string };

const machines: Readonly<Record<string, readonly States[]>> = {
  actions: [{ file: "packages/actions/src/pool/action-record.ts", name: "ActionState" }],
  channel: [{ file: "packages/core/src/channel/channel-messages.ts", name: "StreamSnapshot" }],
  "device-lock": [
    { file: "packages/core/src/device-lock/lock-party.ts", name: "PartyState" },
    { file: "packages/core/src/device-lock/lock-messages.ts", name: "Residency" },
  ],
  "device-pool": [{ file: "packages/core/src/device-pool/pool-members.ts", name: "Stage" }],
  "episode-router": [{ file: "packages/trajectories/src/live/router.ts", name: "EpisodePhase" }],
  planner: [{ file: "packages/planner/src/profile/replanner-state.ts", name: "Phase" }],
  ranks: [{ file: "packages/core/src/ranks/rank-state.ts", name: "rankPhases" }],
};

/** The strings of a type or constant: of a union of strings, of the `type` or `state` of an object, or of a list. */
function statesOf({ file, name }: States): string[] {
  const source = readFileSync(join(projectRoot, file), "utf8");
  const [declared = ""] =
    new RegExp(`^(?:export )?(?:type|const) ${name} =(?:[^;{]|\\{[^}]*\\})*;`, "m").exec(source) ?? [];
  const ofObject = [...declared.matchAll(/readonly (?:type|state): ((?: ?\|? ?"[a-z-]+")+)/g)].map(
    ([, union]) => union,
  );
  const text = ofObject.length > 0 ? ofObject.join(" ") : declared;
  return [...text.matchAll(/"([a-z-]+)"/g)].map(([, state]) => state as string);
}

const drawingOf = (page: string): string =>
  new MarkdownFile(`docs/design/${page}.md`).blocks
    .filter(({ language }) => language === "text")
    .map(({ text }) => text)
    .join("\n");

test.each(Object.entries(machines))("the drawing of '%s' has every state of the machine", (page, states) => {
  const drawing = drawingOf(page);
  const named = new Set(drawing.match(/[a-z]+(?:-[a-z]+)*/g));
  for (const each of states) {
    expect(statesOf(each).length, each.name).toBeGreaterThan(2);
    expect(statesOf(each).filter((state) => !named.has(state))).toEqual([]);
  }
});

test("every page of a machine has a drawing", () => {
  const index = new MarkdownFile("docs/design/index.md").text;
  const pages = [...index.matchAll(/^\| \[[^\]]+\]\(([a-z-]+)\.md\)/gm)].map(([, page]) => page as string);
  expect(pages.length).toBeGreaterThan(7);
  expect(pages.filter((page) => !/[▶▼]/.test(drawingOf(page)))).toEqual([]);
});
