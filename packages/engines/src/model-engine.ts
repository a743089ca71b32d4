import { Sampling, TreadleError, VersionRun, type Weights } from "@treadle/contracts";
import type { z } from "zod";
import { encodeCheckpoint, readCheckpoint } from "./checkpoint.ts";
import type {
  BegunCompletion,
  EngineMemory,
  GenerateOptions,
  GenerationOrder,
  JoiningCompletion,
  OptimStep,
  Trainable,
} from "./engine.ts";
import { Optimiser } from "./optimiser.ts";
import { OrderedEngine } from "./ordered-engine.ts";
import { initialWeightsId, type ParameterShape, Parameters, weightsIdOf } from "./parameters.ts";
import type { Pieces } from "./pieces.ts";

export function invalidRequest(message: string): TreadleError {
  return new TreadleError("engine.invalid-request", message);
}

/** With its defaults. Throws `engine.invalid-request`, with each value and what is allowed. */
export function resolveSampling(sampling: z.input<typeof Sampling>): Sampling {
  const parsed = Sampling.safeParse(sampling);
  if (parsed.success) return parsed.data;
  const given: Readonly<Record<string, unknown>> = sampling;
  const problems = parsed.error.issues.map(({ path, message }) =>
    path.length === 0 ? message : `sampling.${path.join(".")} is '${given[String(path[0])]}': ${message}`,
  );
  throw invalidRequest(`${problems.join("; ")}; sample with what is allowed`);
}

export function checkKeys(prompts: readonly Int32Array[], { keys }: GenerateOptions): void {
  if (!keys || keys.length === prompts.length) return;
  throw invalidRequest(`'${keys.length}' keys given for '${prompts.length}' prompts; give one a prompt, or none`);
}

/** Throws `engine.invalid-request` for what has begun elsewhere and has no room for another token, or whose parts do not fit each other. */
export function checkBegun({ prompt, begun }: JoiningCompletion, { maxTokens }: Sampling, contextLength: number): void {
  if (!begun) return;
  checkParts(begun);
  const length = prompt.length + begun.tokens.length;
  if (length >= contextLength)
    throw invalidRequest(
      `a completion joins with '${length}' tokens where at most ${contextLength - 1} were expected; end it with 'length' where it is, or raise contextLength`,
    );
  const numChosen = begun.tokens.length - begun.numAppended;
  if (numChosen >= maxTokens)
    throw invalidRequest(
      `a completion joins with '${numChosen}' chosen tokens where at most ${maxTokens - 1} were expected; end it with 'length' where it is, or raise maxTokens`,
    );
}

/** Whoever reads them later takes one entry a token from each. */
function checkParts({ tokens, logprobs, versions, numAppended, turnFrom }: BegunCompletion): void {
  const { length } = tokens;
  const refuse = (what: string): never => {
    throw invalidRequest(`a completion joins with '${length}' tokens and ${what}; give what it had when it was cut`);
  };
  if (logprobs.length !== length) refuse(`'${logprobs.length}' log-probabilities`);
  const numVersioned = versions?.reduce((sum, [, count]) => sum + count, 0) ?? length;
  const areRuns = versions?.every((run) => VersionRun.safeParse(run).success) ?? true;
  if (!areRuns || numVersioned !== length) refuse(`the versions '${JSON.stringify(versions)}'`);
  for (const [name, count] of Object.entries({ numAppended, turnFrom }))
    if (!Number.isInteger(count) || count < 0 || count > length) refuse(`'${name}' '${count}'`);
}

/** Throws `engine.invalid-request` for what no order of completions can be; priorities are checked when they are asked for. */
export function checkOrder({ order }: GenerateOptions): void {
  if (!order) return;
  const { spareCaches = 0, displace } = order;
  if (!Number.isInteger(spareCaches) || spareCaches < 0)
    throw invalidRequest(`order.spareCaches is '${spareCaches}'; an integer of at least 0 was expected`);
  if (displace && !(displace.margin >= 0 && displace.margin < Number.POSITIVE_INFINITY))
    throw invalidRequest(`order.displace.margin is '${displace.margin}'; a finite number of at least 0 was expected`);
  if (displace && !(Number.isInteger(displace.minTokens) && displace.minTokens > 0))
    throw invalidRequest(`order.displace.minTokens is '${displace.minTokens}'; a positive integer was expected`);
}

/** Without an order all are equal, so that the lowest index goes first. */
export function priorityOf(order: GenerationOrder | undefined, index: number): number {
  const priority = order?.priority(index) ?? 0;
  if (Number.isFinite(priority)) return priority;
  throw invalidRequest(`the priority of prompt '${index}' is '${priority}'; a finite number was expected`);
}

/**
 * What engines whose parameters live in this process share: parameters, optimiser and version. An engine built on it adds
 * what its model computes.
 */
export abstract class ModelEngine extends OrderedEngine implements Trainable {
  abstract readonly kind: string;
  protected readonly parameters: Parameters;
  protected readonly optimiser: Optimiser;
  #policyVersion = 0;
  #weightsId: string | undefined = initialWeightsId;

  constructor(shapes: readonly ParameterShape[], initial: (shape: ParameterShape, index: number) => Float32Array) {
    super();
    this.parameters = new Parameters(shapes, initial);
    this.optimiser = new Optimiser(this.parameters);
  }

  get policyVersion(): number {
    return this.#policyVersion;
  }

  get weightsId(): string | undefined {
    return this.#weightsId;
  }

  get numParameters(): number {
    return this.parameters.size;
  }

  memory(): EngineMemory {
    return {
      residentBytes: 0,
      loadedBytes: 0,
      hostBytes: this.parameters.values.byteLength + this.optimiser.hostBytes,
    };
  }

  gradients(): Float32Array {
    return this.optimiser.gradients();
  }

  setGradients(gradients: Float32Array): void {
    this.optimiser.setGradients(gradients);
  }

  optimStep(step: OptimStep): Promise<{ readonly gradNorm: number }> {
    return this.exclusively("optimStep", () => this.applyStep(step));
  }

  exportWeights(): Weights {
    return this.parameters.export(this.#policyVersion);
  }

  loadWeights(weights: Weights): Promise<void> {
    return this.exclusively("loadWeights", () => this.applyWeights(weights));
  }

  save(): AsyncIterable<Uint8Array> {
    return encodeCheckpoint(this.parameters, this.optimiser, this.#policyVersion);
  }

  load(checkpoint: Pieces): Promise<void> {
    return this.exclusively("load", async () => {
      const takeOver = await readCheckpoint(checkpoint, this.parameters, this.optimiser);
      this.refuseReleased("load");
      this.#policyVersion = takeOver();
      this.#weightsId = undefined;
    });
  }

  close(): Promise<void> {
    return this.release();
  }

  protected applyStep(step: OptimStep): { readonly gradNorm: number } {
    const result = this.optimiser.step(step);
    this.#policyVersion++;
    this.#weightsId = undefined;
    return result;
  }

  protected applyWeights(weights: Weights): void {
    this.parameters.import(weights);
    this.#policyVersion = weights.policyVersion;
    this.#weightsId = weightsIdOf(weights);
  }
}
