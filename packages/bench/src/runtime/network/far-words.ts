import { openProtocol } from "@treadle/transport/testing";

/** What the other side may be asked, and told. */
export const farWords = openProtocol(["echo", "received", "give", "cpu", "take"], ["notice"]);
