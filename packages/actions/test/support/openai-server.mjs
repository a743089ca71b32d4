// Answers as an engine with OpenAI's API: node openai-server.mjs <port>. What it does is the first word of `messages[0].content`:
// `say` (also as a stream, whose end waits for GET /go), `hang`, `die`, `refuse`, `flood`.
import { createServer } from "node:http";

const [port] = process.argv.slice(2);
const seen = [];
const waiting = [];
let closed = 0;
let floodedBytes = 0;

// As Python's json writes them: a float that JavaScript would print differently, and a space after each separator.
const logprobs =
  '{"content": [{"token": "12", "logprob": -1.0000000000000002e-05, "bytes": [49, 50], "top_logprobs": [{"token": "12", "logprob": -0.10}]}]}';
const chunk = (text) =>
  `data: {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "${text}"}, "logprobs": ${logprobs}}]}\n\n`;

createServer(async (request, response) => {
  const { pathname } = new URL(request.url, "http://localhost");
  const json = (status, body, headers = {}) =>
    response.writeHead(status, { "content-type": "application/json", "x-port": port, ...headers }).end(body);
  if (pathname === "/health") return json(200, "{}");
  if (pathname === "/seen") return json(200, JSON.stringify({ pid: process.pid, seen, closed, floodedBytes }));
  if (pathname === "/go") {
    for (const go of waiting.splice(0)) go();
    return json(200, "{}");
  }
  let text = "";
  for await (const piece of request) text += piece;
  const { rawHeaders, url } = request;
  seen.push({ url, rawHeaders, text });
  response.on("close", () => {
    if (!response.writableEnded) closed++;
  });
  const { model, stream, messages = [], input } = JSON.parse(text);
  if (input !== undefined)
    return json(200, `{"object": "list", "model": "${model}", "data": [{"embedding": [0.10, 2e-5]}]}`);
  const [what] = messages[0].content.split(" ");
  if (what === "hang") return;
  if (what === "refuse")
    return json(429, '{"error": {"message": "slow down", "code": "busy"}}', { "retry-after": "7" });
  if (stream || what === "flood")
    response.writeHead(200, { "content-type": "text/event-stream", "x-port": port }).write(chunk("a"));
  if (what === "die") return setTimeout(() => process.exit(1), 50);
  if (what === "flood") {
    const piece = Buffer.alloc(65_536, "x");
    for (;;) {
      floodedBytes += piece.length;
      if (response.write(piece)) continue;
      await new Promise((resolve) => response.once("drain", resolve));
    }
  }
  if (!stream)
    return json(
      200,
      `{"object": "chat.completion", "model": "${model}", "pid": ${process.pid}, "choices": [{"logprobs": ${logprobs}}]}`,
    );
  await new Promise((resolve) => waiting.push(resolve));
  response.end(`${chunk("b")}data: [DONE]\n\n`);
}).listen(Number(port), "127.0.0.1");
