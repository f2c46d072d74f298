package io.djltp.job;

import java.time.Duration;
import java.util.List;

/**
 * What the master says when all have come.
 *
 * @param timeoutMillis how long all wait for each other
 * @param heartbeatMillis after how long a silent process counts as dead
 * @param members what all said, in their order
 */
record Welcome(long timeoutMillis, long heartbeatMillis, List<Hello> members) {

    Duration timeout() {
        return Duration.ofMillis(timeoutMillis);
    }

    Duration heartbeatTimeout() {
        return Duration.ofMillis(heartbeatMillis);
    }

    List<JobMember> jobMembers() {
        return members.stream().map(Hello::member).toList();
    }
}
