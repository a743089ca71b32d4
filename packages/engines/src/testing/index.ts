export { qwen3Shapes } from "../export/drawn-qwen3.ts";
export { type Script, ScriptedEngine } from "./scripted-engine.ts";
export type { DoubleOptions, Fault, ServerDouble } from "./server-double.ts";
export { SglangDouble } from "./sglang-double.ts";
export { TinyModel, type TinyModelOptions, tinyWeights, writeTinyModel } from "./tiny-model.ts";
export { VllmDouble } from "./vllm-double.ts";
export { wholeOf } from "./whole-of.ts";
