/** Contains the collective operations of threads that share the memory of one process. */
package io.djltp.internal.collective.local;
