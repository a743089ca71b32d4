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
export function* smaller(): Generator<object> {}
export const configOf = (workload: object): object => ({ batch: 8, cluster: { devices: 2 }, ...workload });
