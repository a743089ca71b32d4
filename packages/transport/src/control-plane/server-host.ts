/** The host in a server's address, which has a scheme or none. */
export const hostOf = (server: string): string =>
  new URL(server.includes("://") ? server : `nats://${server}`).hostname.replace(/^\[(.*)\]$/, "$1");
