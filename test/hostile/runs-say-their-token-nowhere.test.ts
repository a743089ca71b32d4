/**
 * A client of an account that everybody shares: it hears every subject, from before the first agent starts until the run has
 * ended. The members have keys, and the server denies nobody anything. Agents, runner and workers are as they are shipped.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { connectStranger, startNatsServer } from "@treadle/transport/testing";
import { expect, test } from "vitest";
import { pidOf } from "../support/cluster.ts";
import { makeKeys } from "../support/keys.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";

/** Where nobody listens: processes bind to one address of this machine, and say another. */
const nowhere = "127.7.7.7";

/** A token as it may pass: as text, in hex, and in base64 wherever it begins there. */
function formsOf(token: string): Buffer[] {
  const bytes = Buffer.from(token);
  const bare = token.replaceAll("-", "");
  const inBase64 = [0, 1, 2].flatMap((before) => {
    const padded = Buffer.concat([Buffer.alloc(before), bytes]);
    // Characters at either end depend on what is beside the token, too.
    return (["base64", "base64url"] as const).map((encoding) => padded.toString(encoding).slice(4, -4));
  });
  return [
    ...[token, bare, bytes.toString("hex"), ...inBase64].map((text) => Buffer.from(text)),
    Buffer.from(bare, "hex"),
  ];
}

test.each([
  { links: "direct", flags: [], overrides: [] },
  {
    links: "relayed by NATS",
    flags: ["--advertise", nowhere],
    overrides: [`cluster.links.advertise=${nowhere}`],
  },
])(
  "TR3: who hears every subject of a whole run, whose links are $links, hears its token nowhere",
  async (each) => {
    const keys = await makeKeys();
    await using world = await NodesWorld.over(Object.assign(await startNatsServer(), { keys }));
    const tokens = join(world.root, "tokens");
    const keep = fileURLToPath(new URL("../support/keep-tokens.mjs", import.meta.url));
    world.environment = { NODE_OPTIONS: `--import=${keep}`, TREADLE_TEST_TOKENS: tokens };
    const stranger = await connectStranger(world.nats.url);
    const heard: { readonly subject: string; readonly bytes: Buffer }[] = [];
    stranger.subscribe(">", {
      callback: (_, { subject, reply = "", headers, data }) => {
        const said = [...(headers ?? [])].flat(2).join("\n");
        heard.push({ subject, bytes: Buffer.concat([Buffer.from(`${subject}\n${reply}\n${said}\n`), data]) });
      },
    });
    await stranger.flush();
    await Promise.all(["a", "b"].map((name) => world.startNode(name, each.flags)));
    const kept = "cluster.nats.durableRuns=true";
    const run = world.startRun(["steps=12", "pauseMs=60", "cluster.minNodes=2", kept, ...each.overrides]);
    await run.event("step-finished", ({ step }) => step === 2);
    process.kill(pidOf(run.events, "maker/0"), "SIGKILL"); // its successor is told the token, too
    const { summary } = await run.event("run-finished");
    expect(await run.exited).toBe(0);
    await stranger.flush();
    await stranger.close();

    const [token = "", ...others] = new Set(readFileSync(tokens, "utf8").trim().split("\n"));
    expect(token).toMatch(/^[0-9a-f-]{36}$/);
    expect(others).toEqual([]);
    // It has heard the whole run: who is there, questions and answers, beats, log lines, and records.
    const subjects = heard.map(({ subject }) => subject);
    for (const part of [".entry.node.a", ".command.node.a.", ".command.node.b.", "_INBOX.", ".heartbeats.", "$KV."])
      expect(subjects.filter((subject) => subject.includes(part)).length, part).toBeGreaterThan(0);
    for (const form of formsOf(token))
      expect(heard.filter(({ bytes }) => bytes.includes(form)).map(({ subject }) => subject)).toEqual([]);
    await expectWholeLedger(join(world.runs, summary.runId), 12, 12);
    await world.expectNothingLeft(summary.runId, pidsOf(run.events));
  },
  300_000,
);
