package io.djltp.checkpoint;

/**
 * A signal that has ended a training.
 *
 * @param name its name, such as SIGTERM
 * @param exitStatus the exit status of a process that it ends, such as 143
 */
public record StopSignal(String name, int exitStatus) {}
