import { mean, type Profile, type RunEvent } from "@treadle/contracts";
import { type ComparedPlan, type CompareOptions, compareModes, predictAgain } from "@treadle/runtime/runner";
import { simulate } from "@treadle/simulation";
import type { SimulatedPlan } from "./judge.ts";

export type ComparedWorkload = {
  readonly name: string;
  readonly components: number;
  readonly plans: readonly SimulatedPlan[];
  /** what predictions and simulations rest on */
  readonly profile: Profile;
  /** until the profile was there and plans were tried, which automatic placement costs once */
  readonly profileSeconds: number;
  /** how late timers were meanwhile, on average */
  readonly profileLateMs: number;
  /** predictions and simulations were made after the measurements, by the code as it was then */
  readonly isJudgedAgain?: boolean | undefined;
};

/** Virtual steps cost next to nothing, and the mean of few says little where steps differ. */
const leastSimulatedSteps = 40;
/** They fill a pipeline, as those that are not measured do. */
const firstSteps = 2;

/** One workload in every mode, as planned and automatically, measured and simulated. */
export async function compareWorkload(
  name: string,
  options: Omit<CompareOptions, "onEvent" | "onPlan">,
): Promise<ComparedWorkload> {
  const { plans, profile, profileSeconds, profileLateMs } = await compareModes({
    ...options,
    onEvent: warnings,
    onPlan: (plan) => process.stderr.write(`${name}: ${plan}\n`),
  });
  const simulated = plans.map((each) => ({ ...each, simulated: simulateOne(each, profile, options.steps) }));
  const components = Object.keys(profile.components).length;
  return { name, components, plans: simulated, profile, profileSeconds, profileLateMs };
}

/** One that was measured before, predicted and simulated by the code as it is now; measures nothing. */
export async function judgeAgain(
  options: Parameters<typeof predictAgain>[0] & Pick<CompareOptions, "steps">,
  compared: ComparedWorkload,
): Promise<ComparedWorkload> {
  const { profile } = compared;
  const predicted = await predictAgain(options, profile, compared.plans);
  const plans = predicted.map((each) => ({ ...each, simulated: simulateOne(each, profile, options.steps) }));
  return { ...compared, plans, isJudgedAgain: true };
}

/** A plan that cannot be simulated is told of in its row; the others are none the worse for it. */
function simulateOne({ plan, devices }: ComparedPlan, profile: Profile, steps: number): SimulatedPlan["simulated"] {
  try {
    const simulated = simulate({ plan, devices, profile, steps: Math.max(steps, leastSimulatedSteps), seed: 0 });
    return { seconds: mean(simulated.steps.slice(firstSteps).map(({ seconds }) => seconds)) };
  } catch (error) {
    return { failure: error instanceof Error ? error.message : String(error) };
  }
}

function warnings(event: RunEvent): void {
  if (event.type === "log" || event.type === "worker-died") process.stderr.write(`${JSON.stringify(event)}\n`);
}
