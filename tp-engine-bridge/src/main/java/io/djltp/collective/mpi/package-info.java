/**
 * Contains the {@code mpi} backend: CPU tensors across processes and machines, through Open MPI.
 */
package io.djltp.collective.mpi;
