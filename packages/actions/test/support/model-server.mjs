// Speaks the control endpoints of SGLang or vLLM: node model-server.mjs <port> <healthy after ms> [refuses to wake].
import { createServer } from "node:http";

const [port, healthyAfterMs, mode] = process.argv.slice(2);
const startedMs = Date.now();
let awake = true;
const calls = [];

createServer((request, response) => {
  const { pathname } = new URL(request.url, "http://localhost");
  const answer = (status, body = {}) => response.writeHead(status).end(JSON.stringify(body));
  if (pathname === "/health") return answer(Date.now() - startedMs >= Number(healthyAfterMs) ? 200 : 503);
  if (pathname === "/calls") return answer(200, { calls, pid: process.pid, devices: process.env.CUDA_VISIBLE_DEVICES });
  calls.push(`${request.method} ${request.url}`);
  if (pathname === "/sleep" || pathname === "/release_memory_occupation") awake = false;
  else if (pathname === "/wake_up" || pathname === "/resume_memory_occupation") {
    if (mode === "refuses-to-wake") return answer(500);
    awake = true;
  } else return answer(awake ? 200 : 409);
  answer(200);
}).listen(Number(port), "127.0.0.1");
