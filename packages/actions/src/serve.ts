/** Actions as a service, over gRPC. */
export { type ActionServer, type ActionServerOptions, serveActions } from "./grpc/server.ts";
export { type ServiceStatistics, StatisticsClient } from "./grpc/statistics-client.ts";
export { type ActionHost, ActionHostConfig, openActionHost } from "./service/host.ts";
export { type ActionService, openActionService } from "./service/service.ts";
export { ActionServiceConfig } from "./service/service-config.ts";
export type { LeasedServices, ServedService } from "./services/leased-services.ts";
