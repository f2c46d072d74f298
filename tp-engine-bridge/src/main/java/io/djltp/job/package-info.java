/**
 * Contains how the processes of one job find each other, check that they fit together, and learn of
 * each other's failures.
 *
 * <p>A job is the same program in many JVMs, each holding one rank or more. {@link
 * io.djltp.environment.LaunchEnvironment} reads what the launcher said, {@link io.djltp.job.Job} is
 * the job as one process sees it. Process 0 is the master: all others keep a control connection to
 * it.
 */
@NullMarked
package io.djltp.job;

import org.jspecify.annotations.NullMarked;
