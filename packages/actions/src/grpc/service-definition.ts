import { join } from "node:path";
import type * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { packageFolder } from "@treadle/contracts/package-folder";

const protoPath = join(packageFolder(import.meta.url), "protos/actions/v1/actions.proto");

const loaderOptions = { keepCase: true, longs: Number, defaults: true, oneofs: true } as const;

export function serviceDefinition(): grpc.ServiceDefinition {
  const loaded = loadSync(protoPath, loaderOptions);
  return loaded["treadle.actions.v1.Actions"] as unknown as grpc.ServiceDefinition;
}
