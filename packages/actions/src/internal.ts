/** For sibling packages that measure what lies below the public entry. */
export { toChoices } from "./arrange/choices.ts";
export { arrangePool, arrangePoolByTable } from "./arrange/pool.ts";
export { elasticOf } from "./decide/queued-action.ts";
export { baseEnvironment } from "./drivers/sandbox.ts";
export { serviceDefinition } from "./grpc/service-definition.ts";
export { HostsDriver } from "./hosts/hosts-driver.ts";
