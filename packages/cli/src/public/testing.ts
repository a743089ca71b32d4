/**
 * What an engine of your own has to keep, as cases for any test runner.
 * @module treadle/testing
 */
export {
  type Conformance,
  type ConformanceCase,
  type ConformanceOptions,
  conformingModel,
  generationConformance,
  type TestedGeneration,
  type TestedTraining,
  trainingConformance,
} from "@treadle/engines/testing";
