import { z } from "zod";

export const DockerOptions = z.strictObject({
  /** of every sandbox; must be on the engine, with a POSIX shell, `env`, `cat` and `mkdir` */
  image: z.string().min(1),
  /** that trajectories may name besides, each as it is written or ending in `*`; on the engine, or pulled */
  images: z.array(z.string().min(1)).default([]),
  /** what to do with an allowed image that the engine lacks; registries are those that the engine knows */
  pull: z.enum(["never", "missing"]).default("never"),
  /**
   * file with credentials of registries, as `docker login` writes it (`~/.docker/config.json`); relative to the folder of a service's
   * configuration, or to the root of a workflow's project; default: none
   */
  authFile: z.string().min(1).optional(),
  /** as DOCKER_HOST: `unix:///path` or `tcp://host:port`; default DOCKER_HOST, then /var/run/docker.sock */
  socket: z.string().min(1).optional(),
  /** OCI runtime by its name in the engine, such as gVisor's `runsc`; default: the engine's own */
  runtime: z.string().min(1).optional(),
  /** that commands may make: a list of our own, or what the engine's profile has, such as programs of 32 bits */
  systemCalls: z.enum(["listed", "engine"]).default("listed"),
  /** whom commands run as */
  userId: z.int().positive().default(65_534),
  /** writes cores to control groups where it may; false: always `update`, as the paper */
  fastPath: z.boolean().default(true),
});
export type DockerOptions = z.input<typeof DockerOptions>;
