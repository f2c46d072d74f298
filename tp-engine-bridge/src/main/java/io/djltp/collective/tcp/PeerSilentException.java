package io.djltp.collective.tcp;

import java.io.IOException;

/** A rank did not come within the time-out. */
final class PeerSilentException extends IOException {

    private static final long serialVersionUID = 1L;

    PeerSilentException(String message) {
        super(message);
    }
}
