import { TreadleError } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { limits, RunnerWorld } from "./runner-world.ts";

const world = () => {
  const made = new RunnerWorld({ supervision: { ...limits.supervision, heartbeatTimeoutMs: 100 } });
  made.component(1);
  made.up("actor/0");
  return made;
};

const says = {
  "asks for devices": (made: RunnerWorld, call: string) =>
    made.feed({ type: "acquire", request: 1, from: made.id("actor/0"), call }),
  "returns from a call": (made: RunnerWorld, call: string) => made.returned(call),
} as const;

describe("whatever a worker says shows that it lives", () => {
  test.each(Object.entries(says))("S3: one that %s is not silent", (_, say) => {
    const made = world();
    const call = `${made.call([0])}/0`;
    made.nowMs = 90;
    say(made, call);
    made.nowMs = 190;
    expect(made.feed({ type: "tick" }).map(({ type }) => type)).not.toContain("end-process");
    made.nowMs = 191;
    expect(made.feed({ type: "tick" }).map(({ type }) => type)).toContain("end-process");
  });

  test("that a call was lost with its link is nothing that its worker has said", () => {
    const made = world();
    const call = `${made.call([0])}/0`;
    made.nowMs = 90;
    made.feed({ type: "threw", ...made.id("actor/0"), call, error: new TreadleError("link.closed", "gone") });
    made.nowMs = 101;
    expect(made.feed({ type: "tick" }).map(({ type }) => type)).toContain("end-process");
  });

  test("the detection of a death counts from the last thing that was said", () => {
    const made = world();
    const call = `${made.call([0])}/0`;
    made.nowMs = 60;
    made.feed({ type: "acquire", request: 1, from: made.id("actor/0"), call });
    made.nowMs = 80;
    made.die("actor/0");
    const up = made.up("actor/0").find(({ type }) => type === "up");
    expect(up).toMatchObject({ recovery: { detection: 0.02 } });
  });
});
