/**
 * What two processes tell each other before a link exists, and how each proves that it knows the run's token.
 *
 *   dialler  → hello      version, name, run, nonce, host
 *   acceptor → hello      the same, and a proof over both nonces
 *   dialler  → proof
 *   acceptor → welcome    or, at any point, a refusal with its reason
 *
 * HK1 the token itself never travels; each side checks the other's proof in constant time.
 * HK2 nothing but these four frames, of at most 4 KiB each, is read before both proofs hold.
 */

import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { protocolError } from "../protocol-error.ts";

export const protocolVersion = 1;
export const maxHelloBytes = 4096;

const Nonce = z.string().regex(/^[0-9a-f]{64}$/);
const Identity = {
  version: z.number().int(),
  name: z.string().min(1).max(200),
  runId: z.string().min(1).max(200),
  nonce: Nonce,
  /** Equal for processes that see the same shared memory; empty when this one cannot share any. */
  memory: z.string().max(200),
  /** Prefix of the segments that this process lends. */
  segmentPrefix: z.string().regex(/^$|^[A-Za-z0-9_][A-Za-z0-9_.-]{7,200}$/),
};

const Hello = z.object({ step: z.literal("hello"), ...Identity });
const Answer = z.object({ step: z.literal("answer"), ...Identity, proof: Nonce });
const Proof = z.object({ step: z.literal("proof"), proof: Nonce });
const Welcome = z.object({ step: z.literal("welcome") });
const Refusal = z.object({ step: z.literal("refusal"), reason: z.string().max(1000) });
const Step = z.discriminatedUnion("step", [Hello, Answer, Proof, Welcome, Refusal]);

type Step = z.infer<typeof Step>;
export type Introduction = Pick<z.infer<typeof Hello>, "name" | "runId" | "memory" | "segmentPrefix">;

export type HandshakeRole = "dialler" | "acceptor";

/** What to do after a step from the other side. */
export type HandshakeOutcome =
  | { readonly next: "wait"; readonly send?: Step }
  | { readonly next: "done"; readonly send?: Step; readonly remote: Introduction }
  | { readonly next: "refuse"; readonly send?: Step; readonly error: TreadleError };

/** One side of a handshake; pure but for its nonce. */
export class Handshake {
  readonly #role: HandshakeRole;
  readonly #self: Introduction;
  readonly #token: string;
  readonly #expectedName: string | undefined;
  readonly #nonce = randomBytes(32).toString("hex");
  #remote: z.infer<typeof Hello> | z.infer<typeof Answer> | undefined;

  constructor(role: HandshakeRole, self: Introduction, token: string, expectedName?: string) {
    this.#role = role;
    this.#self = self;
    this.#token = token;
    this.#expectedName = expectedName;
  }

  /** The dialler's first step. */
  hello(): Step {
    return { step: "hello", ...this.#identity() };
  }

  receive(body: Uint8Array): HandshakeOutcome {
    const step = parseStep(body);
    if (step === undefined) return refuse(protocolError("a handshake step is not well formed"));
    if (step.step === "refusal") {
      return { next: "refuse", error: unauthorized(`the other process refused: ${step.reason}`) };
    }
    return this.#role === "dialler" ? this.#receiveAsDialler(step) : this.#receiveAsAcceptor(step);
  }

  #receiveAsDialler(step: Step): HandshakeOutcome {
    if (step.step === "answer" && this.#remote === undefined) {
      const problem = this.#problemWith(step);
      if (problem) return refuse(problem);
      this.#remote = step;
      if (!this.#proves(step.proof, "acceptor", this.#nonce, step.nonce)) return refuse(this.#wrongToken(step.name));
      return { next: "wait", send: { step: "proof", proof: this.#prove("dialler", this.#nonce, step.nonce) } };
    }
    if (step.step === "welcome" && this.#remote !== undefined) return { next: "done", remote: this.#remote };
    return refuse(protocolError(`the handshake step '${step.step}' is out of place`));
  }

  #receiveAsAcceptor(step: Step): HandshakeOutcome {
    if (step.step === "hello" && this.#remote === undefined) {
      const problem = this.#problemWith(step);
      if (problem) return refuse(problem);
      this.#remote = step;
      const proof = this.#prove("acceptor", step.nonce, this.#nonce);
      return { next: "wait", send: { step: "answer", ...this.#identity(), proof } };
    }
    if (step.step === "proof" && this.#remote !== undefined) {
      const remote = this.#remote;
      if (!this.#proves(step.proof, "dialler", remote.nonce, this.#nonce)) return refuse(this.#wrongToken(remote.name));
      return { next: "done", send: { step: "welcome" }, remote };
    }
    return refuse(protocolError(`the handshake step '${step.step}' is out of place`));
  }

  #identity() {
    const { name, runId, memory, segmentPrefix } = this.#self;
    return { version: protocolVersion, name, runId, memory, segmentPrefix, nonce: this.#nonce };
  }

  #problemWith(remote: z.infer<typeof Hello> | z.infer<typeof Answer>): TreadleError | undefined {
    if (remote.version !== protocolVersion) {
      return unauthorized(
        `'${remote.name}' speaks protocol version '${remote.version}', '${this.#self.name}' speaks ${protocolVersion}; run one version of Treadle on every machine`,
      );
    }
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

  #wrongToken(name: string): TreadleError {
    return unauthorized(
      `'${name}' does not hold the token of run '${this.#self.runId}'; start it with the run's token`,
    );
  }

  #prove(role: HandshakeRole, diallerNonce: string, acceptorNonce: string): string {
    return createHmac("sha256", this.#token).update(`${role}|${diallerNonce}|${acceptorNonce}`).digest("hex");
  }

  #proves(proof: string, role: HandshakeRole, diallerNonce: string, acceptorNonce: string): boolean {
    const expected = this.#prove(role, diallerNonce, acceptorNonce);
    return timingSafeEqual(Buffer.from(proof, "hex"), Buffer.from(expected, "hex")); // HK1
  }
}

function parseStep(body: Uint8Array): Step | undefined {
  try {
    return Step.parse(JSON.parse(Buffer.from(body).toString("utf8")));
  } catch {
    return undefined;
  }
}

function refuse(error: TreadleError): HandshakeOutcome {
  return { next: "refuse", error, send: { step: "refusal", reason: error.message.slice(0, 1000) } };
}

function unauthorized(what: string): TreadleError {
  return new TreadleError("link.unauthorized", what);
}
