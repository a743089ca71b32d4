import { join } from "node:path";
import type * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { packageFolder } from "@treadle/contracts/package-folder";

const loaderOptions = { keepCase: true, longs: Number, defaults: true, oneofs: true } as const;

const load = (file: string, service: string): grpc.ServiceDefinition => {
  const loaded = loadSync(join(packageFolder(import.meta.url), "protos", file), loaderOptions);
  return loaded[service] as unknown as grpc.ServiceDefinition;
};

export const serviceDefinition = (): grpc.ServiceDefinition =>
  load("actions/v1/actions.proto", "treadle.actions.v1.Actions");

export const hostDefinition = (): grpc.ServiceDefinition =>
  load("hosts/v1/hosts.proto", "treadle.hosts.v1.SandboxHost");
