import { spawn } from "node:child_process";

/** Makes an empty call as that user does, by Node alone: the status of gRPC, such as 7 (PERMISSION_DENIED), and what it says. */
export const callAsUser = (
  uid: number,
  authority: string,
  { token = "", service = "treadle.actions.v1.Actions", method = "OpenTrajectory" } = {},
): Promise<string> => {
  const program = `
    const session = require("node:http2").connect("http://" + process.argv[1]);
    const call = session.request({
      ":method": "POST", ":path": "/" + process.argv[3],
      "content-type": "application/grpc", te: "trailers",
      ...(process.argv[2] && { authorization: "Bearer " + process.argv[2] }),
    });
    const tell = (headers) => headers["grpc-status"] === undefined ||
      console.log(headers["grpc-status"], decodeURIComponent(headers["grpc-message"] ?? ""));
    call.on("response", tell).on("trailers", tell).on("end", () => session.close()).resume();
    call.end(Buffer.alloc(5));
  `;
  // Not in turn: this process has to serve it.
  const child = spawn(process.execPath, ["-e", program, authority, token, `${service}/${method}`], {
    uid,
    gid: uid,
    cwd: "/",
    env: {},
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (bytes) => (output += bytes));
  return new Promise((resolve) => child.once("close", () => resolve(output.trim())));
};
