/** Holds a server that it has started, and waits to be killed. */
import { ServerEngine } from "@treadle/engines";

const [python, model] = process.argv.slice(2);
await ServerEngine.create(
  { vocabSize: 7, contextLength: 6, layers: 1, width: 8, heads: 1 },
  { kind: "vllm", launch: { python: python! }, model: model! },
);
process.stdout.write("ready\n");
setInterval(() => {}, 1000);
