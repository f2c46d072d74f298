/**
 * Contains what a launcher says about a process: its number, where process 0 is, and the secret of
 * the job, read from the variables of torchrun, Kubernetes, Open MPI and Slurm.
 */
@NullMarked
package io.djltp.environment;

import org.jspecify.annotations.NullMarked;
