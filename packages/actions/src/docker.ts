/** Sandboxes in containers of a Docker Engine. */
export { DockerDriver } from "./drivers/docker-driver.ts";
export { dockerDriverLacks } from "./drivers/docker-engine.ts";
export { DockerOptions } from "./drivers/docker-options.ts";
