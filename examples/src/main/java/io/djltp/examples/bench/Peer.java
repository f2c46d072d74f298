package io.djltp.examples.bench;

/** What this library is measured beside. */
enum Peer {
    /** DJL's own layers, loss and trainer. */
    DJL,
    /** PyTorch, as {@code python3} has it. */
    PYTORCH,
    /** Every one that this machine has. */
    ALL
}
