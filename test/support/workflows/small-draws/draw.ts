/** One workload whose steps are short, and one that is smaller. */
type Workload = { readonly batch: number };

const stage = (name: string) => ({
  work: "score",
  takes: [name === "first" ? "prompts" : "between"],
  puts: name === "first" ? ["between"] : [],
  engine: { logprobs: { unitSeconds: 0.02 } },
});

export const draw = (): Workload => ({ batch: 8 });
export function* smaller({ batch }: Workload): Generator<Workload> {
  if (batch > 6) yield { batch: batch - 2 };
}
export const configOf = ({ batch }: Workload): object => ({
  batch,
  cluster: { devices: 2 },
  placement: { auto: { measuredSeconds: 1 } },
  stages: { first: stage("first"), last: stage("last") },
});
