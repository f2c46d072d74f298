/** Contains the tests of the {@code mpi} backend. */
package io.djltp.collective.mpi;
