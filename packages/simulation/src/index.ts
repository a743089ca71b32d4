export type { SimulatedSpan, SimulatedTrace } from "./recorder.ts";
export {
  type SimulatedComponent,
  type SimulatedDevice,
  type SimulationInput,
  type SimulationResult,
  simulate,
} from "./simulate.ts";
export type { SimulatedStep } from "./simulated-run.ts";
export { planVirtualCluster, type VirtualClusterOptions, type VirtualPlan } from "./virtual-cluster.ts";
export type { ComponentTraits } from "./workflow-model.ts";
