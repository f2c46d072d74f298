/** Contains the collective operations of threads that share the memory of one process. */
@NullMarked
package io.djltp.internal.collective.local;

import org.jspecify.annotations.NullMarked;
