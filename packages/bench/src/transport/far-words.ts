import { openProtocol } from "@treadle/transport/testing";

/** What the far end may be asked, and told. */
export const farWords = openProtocol(["prepare", "echo", "notices", "keep nothing", "release"], ["notice"]);
