/**
 * Names for files in memory that processes of one host share. Their run removes them with the process that made them, however it
 * ends (S4).
 */
export type HostFiles = {
  readonly folder: string;
  /** begins the names of what this process makes */
  readonly ownPrefix: string;
  /** begins the names of what outlives the process that made it, until all of the run's on this node is removed */
  readonly leftPrefix: string;
  /** begins the names of what any process of the run makes */
  readonly runPrefix: string;
};
