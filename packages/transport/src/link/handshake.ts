/**
 * What two processes tell each other before a link exists, and how each proves that it knows the run's token.
 *
 *   dialler  → hello      version, name, run, nonce, host, and a proof over these
 *   acceptor → answer     the same, and a proof over these and the hello's nonce
 *   dialler  → proof      over both nonces
 *   acceptor → welcome    or, at any point, a refusal with its reason
 *
 * The hello's proof may be one that somebody has heard and sends again, so it makes no link: it says only that a holder of
 * the token has once said it, which `half-open.ts` counts once. Each proof is an HMAC with the token as its key, over its
 * purpose and the version first, so none serves for another.
 *
 * HK1 the token itself never travels; each side checks the other's proof in constant time.
 * HK2 nothing but these four frames, of at most 4 KiB each, is read before both proofs hold.
 * HK3 who dials without the token is refused at its hello, and learns the protocol's version and nothing else: no name, no run.
 */

import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { protocolError } from "../protocol-error.ts";

export const protocolVersion = 3;
export const maxHelloBytes = 4096;

const Nonce = z.string().regex(/^[0-9a-f]{64}$/);
/** It is written into the log of who reads it, and may be a stranger's. */
const PrintedText = z
  .string()
  .max(1000)
  .regex(/^\P{C}*$/u);
const Identity = {
  version: z.literal(protocolVersion),
  name: z.string().min(1).max(200),
  runId: z.string().min(1).max(200),
  nonce: Nonce,
  /** Equal for processes that see the same shared memory; empty when this one cannot share any. */
  memory: z.string().max(200),
  /** Prefix of the segments that this process lends. */
  segmentPrefix: z.string().regex(/^$|^[A-Za-z0-9_][A-Za-z0-9_.-]{7,200}$/),
};

/** Versions differ in what follows, so nothing else of it is read. */
const OtherVersion = z.object({ step: z.enum(["hello", "answer"]), version: z.number().int() });
const Hello = z.object({ step: z.literal("hello"), ...Identity, proof: Nonce });
const Answer = z.object({ step: z.literal("answer"), ...Identity, proof: Nonce });
const Proof = z.object({ step: z.literal("proof"), proof: Nonce });
const Welcome = z.object({ step: z.literal("welcome") });
const Refusal = z.object({ step: z.literal("refusal"), reason: PrintedText });
const Step = z.discriminatedUnion("step", [Hello, Answer, Proof, Welcome, Refusal]);

type Step = z.infer<typeof Step>;
type Hello = z.infer<typeof Hello>;
type Answer = z.infer<typeof Answer>;
type Identity = Omit<Hello, "step" | "proof">;
export type Introduction = Pick<Hello, "name" | "runId" | "memory" | "segmentPrefix">;

export type HandshakeRole = "dialler" | "acceptor";

/** What to do after a step from the other side. */
export type HandshakeOutcome =
  /** `vouched`: the nonce of a hello that a holder of the token has said, now or before */
  | { readonly next: "wait"; readonly send: Step; readonly vouched?: string }
  | { readonly next: "done"; readonly send?: Step; readonly remote: Introduction }
  | { readonly next: "refuse"; readonly send?: Step; readonly error: TreadleError };

/** One side of a handshake; pure but for its nonce. */
export class Handshake {
  readonly #role: HandshakeRole;
  readonly #self: Introduction;
  readonly #token: string;
  readonly #expectedName: string | undefined;
  readonly #nonce = randomBytes(32).toString("hex");
  #remote: Hello | Answer | undefined;

  constructor(role: HandshakeRole, self: Introduction, token: string, expectedName?: string) {
    this.#role = role;
    this.#self = self;
    this.#token = token;
    this.#expectedName = expectedName;
  }

  /** The dialler's first step. */
  hello(): Step {
    const identity = this.#identity();
    return { step: "hello", ...identity, proof: this.#mac("hello", ...wordsOf(identity)) };
  }

  receive(body: Uint8Array): HandshakeOutcome {
    const step = readStep(body);
    if (step === undefined) return refuse(protocolError("a handshake step is not well formed"));
    if (typeof step === "number") {
      return refuse(
        unauthorized(
          `the ${this.#role === "acceptor" ? "dialler" : "acceptor"} speaks protocol version '${step}', the ${this.#role} speaks ${protocolVersion}; run one version of Treadle on every machine`,
        ),
      );
    }
    if (step.step === "refusal") {
      return { next: "refuse", error: unauthorized(`the other process refused: ${step.reason}`) };
    }
    return this.#role === "dialler" ? this.#receiveAsDialler(step) : this.#receiveAsAcceptor(step);
  }

  #receiveAsDialler(step: Step): HandshakeOutcome {
    if (step.step === "answer" && this.#remote === undefined) {
      if (!isEqual(step.proof, this.#mac("answer", this.#nonce, ...wordsOf(step)))) {
        return refuse(this.#wrongToken(), withoutToken);
      }
      const problem = this.#problemWith(step);
      if (problem) return refuse(problem);
      this.#remote = step;
      return { next: "wait", send: { step: "proof", proof: this.#mac("proof", this.#nonce, step.nonce) } };
    }
    if (step.step === "welcome" && this.#remote !== undefined) return { next: "done", remote: this.#remote };
    return refuse(protocolError(`the handshake step '${step.step}' is out of place`));
  }

  #receiveAsAcceptor(step: Step): HandshakeOutcome {
    if (step.step === "hello" && this.#remote === undefined) {
      if (!isEqual(step.proof, this.#mac("hello", ...wordsOf(step)))) return refuse(this.#wrongToken(), withoutToken); // HK3
      const problem = this.#problemWith(step);
      if (problem) return refuse(problem);
      this.#remote = step;
      const identity = this.#identity();
      const proof = this.#mac("answer", step.nonce, ...wordsOf(identity));
      return { next: "wait", send: { step: "answer", ...identity, proof }, vouched: step.nonce };
    }
    if (step.step === "proof" && this.#remote !== undefined) {
      const remote = this.#remote;
      if (!isEqual(step.proof, this.#mac("proof", remote.nonce, this.#nonce))) {
        return refuse(this.#wrongToken(), withoutToken);
      }
      return { next: "done", send: { step: "welcome" }, remote };
    }
    return refuse(protocolError(`the handshake step '${step.step}' is out of place`));
  }

  #identity(): Identity {
    const { name, runId, memory, segmentPrefix } = this.#self;
    return { version: protocolVersion, name, runId, memory, segmentPrefix, nonce: this.#nonce };
  }

  #problemWith(remote: Hello | Answer): TreadleError | undefined {
    if (remote.runId !== this.#self.runId) {
      return unauthorized(
        `'${remote.name}' belongs to run '${remote.runId}', '${this.#self.name}' to '${this.#self.runId}'; a process of an old run may still listen at this address`,
      );
    }
    if (this.#expectedName !== undefined && remote.name !== this.#expectedName) {
      return unauthorized(
        `'${remote.name}' answers where '${this.#expectedName}' was expected; the address is stale, look it up again`,
      );
    }
    return undefined;
  }

  /** Without the name that it says it has: that is a stranger's text. */
  #wrongToken(): TreadleError {
    return unauthorized(`it does not hold the token of run '${this.#self.runId}'; start it with the run's token`);
  }

  #mac(purpose: "hello" | "answer" | "proof", ...words: readonly string[]): string {
    const text = JSON.stringify([`treadle ${purpose} ${protocolVersion}`, ...words]);
    return createHmac("sha256", this.#token).update(text).digest("hex");
  }
}

const wordsOf = ({ name, runId, nonce, memory, segmentPrefix }: Identity): string[] => [
  name,
  runId,
  nonce,
  memory,
  segmentPrefix,
];

/** HK1. */
const isEqual = (proof: string, expected: string): boolean =>
  timingSafeEqual(Buffer.from(proof, "hex"), Buffer.from(expected, "hex"));

/** A number is the version that the other side speaks instead of this one. */
function readStep(body: Uint8Array): Step | number | undefined {
  try {
    const json: unknown = JSON.parse(Buffer.from(body).toString("utf8"));
    const other = OtherVersion.safeParse(json).data?.version;
    return other === undefined || other === protocolVersion ? Step.parse(json) : other;
  } catch {
    return undefined;
  }
}

/** HK3: all that is said to whom nothing may be said. */
const withoutToken =
  "one of the two does not hold the token of the other; start both with the run's token, or look the address up again";

function refuse(error: TreadleError, said = error.message): HandshakeOutcome {
  return { next: "refuse", error, send: { step: "refusal", reason: said.slice(0, 1000) } };
}

function unauthorized(what: string): TreadleError {
  return new TreadleError("link.unauthorized", what);
}
