import { fileURLToPath } from "node:url";
import type * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const protoPath = fileURLToPath(new URL("../../protos/actions/v1/actions.proto", import.meta.url));

const loaderOptions = { keepCase: true, longs: Number, defaults: true, oneofs: true } as const;

export function serviceDefinition(): grpc.ServiceDefinition {
  const loaded = loadSync(protoPath, loaderOptions);
  return loaded["treadle.actions.v1.Actions"] as unknown as grpc.ServiceDefinition;
}
