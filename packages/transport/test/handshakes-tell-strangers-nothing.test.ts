import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { Handshake, type HandshakeOutcome, protocolVersion } from "../src/link/handshake.ts";

const token = "a token that only this run has";
const introduction = { runId: "run-of-secrets", memory: "memory-of-secrets", segmentPrefix: "prefix-of-secrets-" };
const dialler = (own = token) => new Handshake("dialler", { name: "maker/0", ...introduction }, own);
const acceptor = () => new Handshake("acceptor", { name: "runner-of-secrets", ...introduction }, token);
const bytes = (step: object): Uint8Array => Buffer.from(JSON.stringify(step));

function refusalOf(outcome: HandshakeOutcome): { readonly said: string; readonly error: string } {
  if (outcome.next !== "refuse") throw new Error(`it was not refused: ${outcome.next}`);
  return { said: JSON.stringify(outcome.send), error: outcome.error.message };
}

test.each([
  ["another token's", dialler("another token, long enough").hello()],
  ["drawn", { ...dialler().hello(), proof: randomBytes(32).toString("hex") }],
  ["of another hello", { ...dialler().hello(), name: "maker/1" }],
])(
  "HK3: a hello whose proof is %s is refused, without a word of who listens, and of its own words none is repeated",
  (_, hello) => {
    const { said, error } = refusalOf(acceptor().receive(bytes(hello)));
    expect(said).toContain("does not hold the token");
    expect(said).not.toMatch(/secrets|maker/);
    expect(error).not.toContain("maker");
  },
);

test("HK3: who has heard a hello gets no further with it: neither its proof nor the acceptor's is the one that is wanted", () => {
  const heard = bytes(dialler().hello());
  const proofOf = (step: object) => (step as { proof: string }).proof;
  for (const pick of ["hello", "answer"] as const) {
    const listens = acceptor();
    const outcome = listens.receive(heard);
    if (outcome.next !== "wait") throw new Error("the hello is a holder's");
    expect(outcome.vouched).toBe(JSON.parse(heard.toString()).nonce);
    const proof = proofOf(pick === "hello" ? JSON.parse(heard.toString()) : outcome.send);
    refusalOf(listens.receive(bytes({ step: "proof", proof })));
  }
});

test("HK1: an answer counts for the hello that it answers, and with the words that were said", () => {
  const answerTo = (asks: Handshake): object => {
    const outcome = acceptor().receive(bytes(asks.hello()));
    if (outcome.next !== "wait") throw new Error("the hello is a holder's");
    return outcome.send;
  };
  const asks = dialler();
  expect(asks.receive(bytes(answerTo(asks))).next).toBe("wait");
  const changed = dialler();
  refusalOf(changed.receive(bytes({ ...answerTo(changed), segmentPrefix: "another-prefix-" })));
  refusalOf(dialler().receive(bytes(answerTo(dialler()))));
});

test("what a stranger gives as its reason is a line of the log at most", () => {
  const refusalFor = (reason: string) => refusalOf(acceptor().receive(bytes({ step: "refusal", reason }))).error;
  expect(refusalFor("the name is another's")).toContain("the name is another's");
  expect(refusalFor("no\n2026-01-01 the run has failed")).not.toContain("failed");
  expect(refusalFor("\u001b[2Jcleared")).not.toContain("cleared");
});

test("an older process learns which versions meet, and not whose run it has met", () => {
  const { proof: _, ...older } = dialler().hello() as { proof: string };
  const { said } = refusalOf(acceptor().receive(bytes({ ...older, version: 1 })));
  expect(said).toContain(`speaks protocol version '1', the acceptor speaks ${protocolVersion}`);
  expect(said).not.toMatch(/secrets|maker/);
  // and reads what it would be sent: its hello had these fields, of which it reads no others
  expect(Object.keys(older)).toEqual(["step", "version", "name", "runId", "memory", "segmentPrefix", "nonce"]);
  const newer = protocolVersion + 1;
  const answer = bytes({ ...older, step: "answer", version: newer });
  expect(refusalOf(dialler().receive(answer)).error).toContain(`'${newer}'`);
});
