package io.djltp.examples.bench;

/**
 * What a JVM of members of a job has to do.
 *
 * @param first the number of its first member
 * @param count how many members it has
 * @param members the number of members of the job
 * @param port the port at which member 0 listens
 * @param secret what the members know
 * @param heartbeatMillis after how long a silent member counts as dead
 * @param timeoutMillis how long members wait for each other
 */
record MemberTask(
        int first,
        int count,
        int members,
        int port,
        String secret,
        long heartbeatMillis,
        long timeoutMillis) {}
