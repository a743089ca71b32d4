import type { RestoreCost } from "../managers/gpu.ts";
import type { ActionContext } from "../pool/action-record.ts";

/** A model service of the configuration, as whoever asks it sees it. */
export type ServedService = {
  readonly name: string;
  /** of whose units it takes */
  readonly resource: string;
  /** the numbers of units that it runs on */
  readonly dops: readonly number[];
  /** of a request, what further devices do not make shorter, until executions show what they do */
  readonly serialShare: number;
  /** what `Submit` and OpenAI's API may ask: a path, or all below one (`/v1/*`) */
  readonly paths: readonly string[];
};

/** Model services, and where one answers that an allocation was granted. */
export type LeasedServices = {
  readonly served: readonly ServedService[];
  urlOf(service: string, allocation: ActionContext["allocation"]): string;
  /** After a request to it broke: one that is dead does not count as restored any more. */
  endIfDead(service: string, allocation: ActionContext["allocation"]): Promise<void>;
  restoreCosts(): readonly RestoreCost[];
};

/**
 * Asks a service on the devices that an action was granted. After a request that broke it is looked at while they are held: whoever
 * gets them next finds it well, or gone, also where the client waited no longer.
 */
export async function askService<Result>(
  services: LeasedServices,
  service: string,
  { allocation }: Pick<ActionContext, "allocation">,
  ask: (url: string) => Promise<Result>,
): Promise<Result> {
  const url = services.urlOf(service, allocation);
  try {
    return await ask(url);
  } catch (error) {
    await services.endIfDead(service, allocation);
    throw error;
  }
}

/**
 * What a request to it costs: whichever of its numbers of units the scheduler gives. Where the caller varies another resource, the
 * fewest.
 */
export function unitsFor({ resource, dops, serialShare }: ServedService, key?: string) {
  const [only, ...others] = [...dops].sort((a, b) => a - b);
  if (key !== undefined && key !== resource) return { cost: { [resource]: only! } };
  if (others.length === 0) return { cost: { [resource]: only! }, key: resource };
  return { cost: { [resource]: [...dops] }, key: resource, elasticity: { type: "amdahl", serialShare } as const };
}
