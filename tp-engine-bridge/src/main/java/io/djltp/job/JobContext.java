package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;

/**
 * What the parts of one process of a job share.
 *
 * @param environment what the launcher said
 * @param options what the processes agree on
 * @param state whether the job lives
 * @param status what this process is doing
 * @param loop where its connections live
 */
record JobContext(
        LaunchEnvironment environment,
        JobOptions options,
        JobState state,
        Status status,
        JobLoop loop) {}
