/** Workloads that no plan fits, and wishes that make no sense. */
const stage = (name: string, more: object = {}) => ({
  work: "score",
  takes: [name === "first" ? "prompts" : "between"],
  puts: name === "first" ? ["between"] : [],
  engine: { logprobs: { unitSeconds: 0.001 } },
  ...more,
});
const stages = { first: stage("first"), last: stage("last") };
const both = [["first", "last"]];

const workloads = [
  { stages: { ...stages, last: stage("last", { devicesPerRank: 3 }) } },
  { stages, placement: { wishes: { apart: both, together: both } } },
  { stages, placement: { wishes: { maxRanks: { last: 0 } } } },
  { stages: { ...stages, last: stage("last", { ranks: { max: 0 } }) } },
  { stages, placement: { wishes: { freeDevices: "0-1" } } },
];

export const draw = (_seed: number, index: number): object => workloads[index % workloads.length] as object;
/** One that fails in another way, whatever it is of, then one that runs no better. */
export function* smaller(workload: { readonly batch?: number }): Generator<object> {
  const { batch = 8 } = workload;
  if (batch === 1) return;
  yield { ...workload, stages: { ...stages, last: stage("last", { work: "dream" }) } };
  yield { ...workload, batch: batch >> 1 };
}
export const configOf = (workload: object): object => ({ batch: 8, cluster: { devices: 2 }, ...workload });
