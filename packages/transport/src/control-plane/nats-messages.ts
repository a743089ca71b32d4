/** Everything that a process and its NATS thread say to each other. Both are ours, so types are enough. */

/** What the thread connects with. Secrets stay here and in the thread. */
export type NatsCredentials = {
  readonly user?: string | undefined;
  readonly password?: string | undefined;
  readonly token?: string | undefined;
  readonly credentialsFile?: string | undefined;
};

export type NatsThreadOptions = NatsCredentials & {
  readonly servers: readonly string[];
  /** as the server lists its clients */
  readonly name: string;
  /** only the servers that are listed, not those that they name */
  readonly isFixed: boolean;
  /** from one ping of the server to the next */
  readonly pingMs: number;
  readonly tls?: {
    readonly ca?: string | undefined;
    readonly cert?: string | undefined;
    readonly key?: string | undefined;
  };
};

export type ToThread =
  /** `ofMembers`: what they say of themselves, of which the newest is enough */
  | { readonly type: "subscribe"; readonly id: number; readonly subject: string; readonly ofMembers: boolean }
  | { readonly type: "unsubscribe"; readonly id: number; readonly subscription: number }
  | { readonly type: "publish"; readonly subject: string; readonly data: string }
  /** each answer comes as a message; settles only when nobody listens, or in time with a failure */
  | {
      readonly type: "request";
      readonly id: number;
      readonly subject: string;
      readonly data: string;
      readonly timeoutMs: number;
    }
  | { readonly type: "answered"; readonly request: number }
  | { readonly type: "bucket"; readonly id: number; readonly bucket: string; readonly replicas: number }
  | {
      readonly type: "put";
      readonly id: number;
      readonly bucket: string;
      readonly key: string;
      readonly data: string;
      /** only where nothing is there */
      readonly isNew: boolean;
    }
  | { readonly type: "get"; readonly id: number; readonly bucket: string; readonly key: string }
  /** `below`: only keys that begin with it and a dot */
  | { readonly type: "list"; readonly id: number; readonly bucket: string; readonly below?: string | undefined }
  /** removes all keys below, also the marks of their removal */
  | { readonly type: "purge"; readonly id: number; readonly bucket: string; readonly below: string }
  /** opens a bucket of objects, which are larger than messages may be */
  | { readonly type: "objects"; readonly id: number; readonly bucket: string; readonly replicas: number }
  | ({ readonly type: "object-put"; readonly id: number; readonly vouched?: Vouched | undefined } & ObjectName &
      ObjectSource)
  /** settles with the digest and size of what would be put */
  | ({ readonly type: "content"; readonly id: number } & ObjectSource)
  /** settles with what is said of it, or undefined when there is none */
  | ({ readonly type: "object-note"; readonly id: number } & ObjectName)
  /** settles with what it holds, or, with a path, when the file there holds the same; undefined when there is none */
  | ({
      readonly type: "object-get";
      readonly id: number;
      readonly path?: string | undefined;
      /** what it must be */
      readonly expected?: Content | undefined;
      /** refused unread when it is larger */
      readonly maxBytes?: number | undefined;
    } & ObjectName)
  | ({ readonly type: "object-has"; readonly id: number } & ObjectName)
  | ({ readonly type: "object-delete"; readonly id: number } & ObjectName)
  /** settles with the names that begin with `below` */
  | { readonly type: "object-list"; readonly id: number; readonly bucket: string; readonly below: string }
  /**
   * Says what this member is, at once and whenever it is asked or somebody probes, and beats at every interval. The same id
   * again: it is something else now.
   */
  | ({ readonly type: "present"; readonly id: number } & Presence)
  | { readonly type: "absent"; readonly id: number }
  | { readonly type: "close"; readonly id: number };

/** What a member says of itself, and the subjects on which it is asked to. */
export type Presence = {
  readonly beat: Said;
  readonly entry: Said;
  readonly intervalMs: number;
  readonly probe: string;
  readonly ask: string;
};
export type Said = { readonly subject: string; readonly data: string };

export type ObjectName = { readonly bucket: string; readonly name: string };
/** Which bytes an object has. */
export type Content = { readonly digest: string; readonly sizeBytes: number };
/** What is said of an object beside its bytes. */
export type Vouched = Content & { readonly note: string };
/** a file that the thread reads, or the text itself */
export type ObjectSource = { readonly path: string } | { readonly text: string };

/**
 * `conflict`: something is there. `limit`: the server's or the account's own limits leave no room. `damaged`: what is kept there
 * is not what it says.
 */
export type ThreadFailure = {
  readonly kind:
    | "timeout"
    | "no-responders"
    | "conflict"
    | "refused"
    | "unreachable"
    | "limit"
    | "foreign"
    | "damaged"
    | "failed";
  readonly message: string;
};

export type StoredEntry = { readonly key: string; readonly data: string; readonly revision: number };

export type FromThread =
  | { readonly type: "settled"; readonly id: number; readonly value?: unknown; readonly failure?: ThreadFailure }
  | {
      readonly type: "message";
      readonly id: number;
      readonly subject: string;
      readonly data: string;
      readonly reply?: string | undefined;
    }
  | { readonly type: "connection"; readonly isConnected: false }
  /** `listensOn`: hosts at which that server, and others of its cluster, take clients, as it says */
  | { readonly type: "connection"; readonly isConnected: true; readonly listensOn: readonly string[] };
