/**
 * A reward model as an .onnx file, made without any tool but this: the counts of a text's bytes, through one hidden layer
 * with ReLU, to a score from 0 to 1. Its weights are drawn from a seed; it judges nothing, and shows how one is served.
 *
 *     node reward-model.mjs <seed> [width of the hidden layer] > reward.onnx
 *
 * The fields are those of onnx.proto3 (IR version 8, opset 13).
 */
import { pathToFileURL } from "node:url";

export const inputs = 256;
const usualWidth = 32;

/** Row-major. The same numbers for the same seed. */
export function rewardWeights(seed, hidden = usualWidth) {
  let state = seed >>> 0;
  const draw = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
  const array = (length, scale) => Float32Array.from({ length }, () => draw() * scale);
  return { first: array(inputs * hidden, 0.5), bias: array(hidden, 0.5), second: array(hidden, 0.5) };
}

/** @returns {Float32Array} how often each byte occurs */
export function byteCounts(text) {
  const counts = new Float32Array(inputs);
  for (const byte of Buffer.from(text)) counts[byte] += 1;
  return counts;
}

export function rewardModel(seed = 1, hidden = usualWidth) {
  const { first, bias, second } = rewardWeights(seed, hidden);
  const graph = [
    message(1, node("MatMul", ["counts", "first"], ["products"])),
    message(1, node("Add", ["products", "bias"], ["sums"])),
    message(1, node("Relu", ["sums"], ["features"])),
    message(1, node("MatMul", ["features", "second"], ["logit"])),
    message(1, node("Sigmoid", ["logit"], ["score"])),
    text(2, "reward"),
    message(5, tensor("first", [inputs, hidden], first)),
    message(5, tensor("bias", [hidden], bias)),
    message(5, tensor("second", [hidden, 1], second)),
    message(11, valueInfo("counts", ["texts", inputs])),
    message(12, valueInfo("score", ["texts", 1])),
  ];
  // ModelProto: ir_version, producer_name, graph, opset_import
  return Buffer.concat([number(1, 8), text(2, "treadle"), message(7, graph), message(8, [number(2, 13)])]);
}

const node = (type, from, to) => [
  ...from.map((name) => text(1, name)),
  ...to.map((name) => text(2, name)),
  text(4, type),
];

const float = 1;
const tensor = (name, dims, values) => [
  ...dims.map((dim) => number(1, dim)),
  number(2, float),
  text(8, name),
  bytes(9, Buffer.from(values.buffer)),
];

const valueInfo = (name, dims) => {
  const shape = dims.map((dim) => message(1, [typeof dim === "number" ? number(1, dim) : text(2, dim)]));
  return [text(1, name), message(2, [message(1, [number(1, float), message(2, shape)])])];
};

// Protocol buffers: a field's number and wire type, then its value.
const varint = (value) => {
  const parts = [];
  for (let left = value; ; left = Math.floor(left / 128)) {
    if (left < 128) return Buffer.from([...parts, left]);
    parts.push((left % 128) + 128);
  }
};
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field * 8 + 2), varint(value.length), value]);
const text = (field, value) => bytes(field, Buffer.from(value));
const message = (field, parts) => bytes(field, Buffer.concat(parts));

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href)
  process.stdout.write(rewardModel(...process.argv.slice(2, 4).map(Number)));
