package io.djltp.collective.tcp;

import java.io.IOException;

/** The connection to a rank broke while an operation was going on. */
final class PeerLostException extends IOException {

    private static final long serialVersionUID = 1L;

    PeerLostException(int peer, String description, IOException cause) {
        super(
                "the connection to rank "
                        + peer
                        + " was lost in "
                        + description
                        + " ("
                        + cause.getMessage()
                        + ")",
                cause);
    }
}
