/**
 * A model service on ONNX Runtime: one process, one model, an HTTP endpoint. Its memory comes back when it ends.
 *
 *     node onnx-service.mjs <model.onnx> <port> [threads]
 *
 * One thread unless more are asked for, as by `{dop}` where a device is a part of this machine. GET /health answers once the model
 * has given its first answer; POST /score {"texts": ["…"]} gives {"scores": [0.5]}.
 */
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { env, InferenceSession, Tensor } from "onnxruntime-web";
import { byteCounts, inputs } from "./reward-model.mjs";

const [path, port, threads = "1"] = process.argv.slice(2);
env.wasm.numThreads = Number(threads);
if (!(env.wasm.numThreads >= 1)) throw new Error(`'${threads}' is no number of threads; give 1, 2, 4 or 8`);
const session = await InferenceSession.create(await readFile(path), { executionProviders: ["wasm"] });
// The session runs one request at a time.
let last = Promise.resolve();

async function score(texts) {
  const counts = new Float32Array(texts.length * inputs);
  for (const [i, text] of texts.entries()) counts.set(byteCounts(text), i * inputs);
  const { score } = await session.run({ counts: new Tensor("float32", counts, [texts.length, inputs]) });
  return [...score.data];
}

async function answer(request) {
  const { method, url } = request;
  if (method === "GET" && url === "/health") return [200, { pid: process.pid }];
  if (method !== "POST" || url !== "/score") return [404, { error: `no such call: ${method} ${url}` }];
  let body = "";
  for await (const chunk of request) {
    body += chunk;
    if (body.length > 2 ** 22) return [413, { error: "more than 4 MiB of text" }];
  }
  let texts;
  try {
    ({ texts } = JSON.parse(body));
  } catch {
    texts = undefined;
  }
  if (!Array.isArray(texts) || texts.length === 0 || !texts.every((text) => typeof text === "string"))
    return [400, { error: 'the body is {"texts": [one or more strings]}' }];
  const turn = last.then(() => score(texts));
  last = turn.catch(() => {});
  return [200, { scores: await turn }];
}

await score(["warm"]);
createServer((request, response) => {
  answer(request)
    .catch((error) => [500, { error: error.message }])
    .then(([status, body]) => {
      response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
    });
}).listen(Number(port), "127.0.0.1");
